// A device of type "cuda" for a torch without CUDA: its memory is the host's, its kernels are the
// CPU's. An operator of tensors there runs on host tensors of the same memory, and what it returns
// goes back: one fallback serves all operators.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using c10::Storage;

const c10::Device kCuda(c10::DeviceType::CUDA, 0);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = size ? std::malloc(size) : nullptr;
    return {data, data, &std::free, kCuda};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }
} memory;

at::SparseTensorImpl* sparse(const Tensor& tensor) {
  return static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
}

// The tensors of one call of an operator, here and there. Views share storages on both sides.
struct Call {
  std::vector<std::pair<Storage, Storage>> storages;  // device, host
  std::vector<std::pair<Tensor, Tensor>> tensors;     // device, host
  bool on_device = false;

  static Storage alias(const Storage& storage, c10::Device device) {
    c10::DataPtr data(storage.mutable_data(), new Storage(storage), [](void* held) { delete static_cast<Storage*>(held); }, device);
    return Storage(Storage::use_byte_size_t(), storage.nbytes(), std::move(data),
                   device.is_cuda() ? &memory : c10::GetAllocator(at::kCPU), true);
  }
  Storage to_host(const Storage& storage) {
    for (auto& [there, here] : storages)
      if (there.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return here;
    storages.emplace_back(storage, alias(storage, at::kCPU));
    return storages.back().second;
  }
  Storage to_device(const Storage& storage) {
    for (auto& [there, here] : storages)
      if (here.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) {
        if (there.data() != here.data()) there = alias(here, kCuda);  // the operator made it larger
        return there;
      }
    storages.emplace_back(alias(storage, kCuda), storage);
    return storages.back().first;
  }
  static Tensor strided(Storage storage, const Tensor& like, c10::DispatchKey key) {
    Tensor out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    auto* impl = out.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    if (like.is_conj()) out._set_conj(true);
    if (like.is_neg()) out._set_neg(true);
    return out;
  }
  static Tensor coo(Tensor indices, Tensor values, const Tensor& like, c10::DispatchKey key) {
    Tensor out = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), values.dtype());
    sparse(out)->raw_resize_(sparse(like)->sparse_dim(), sparse(like)->dense_dim(), like.sizes());
    sparse(out)->set_indices_and_values_unsafe(indices, values);
    sparse(out)->set_coalesced(sparse(like)->coalesced());
    return out;
  }
  Tensor to_host(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    on_device = true;
    Tensor host = tensor.is_sparse()
        ? coo(to_host(sparse(tensor)->indices()), to_host(sparse(tensor)->values()), tensor, c10::DispatchKey::SparseCPU)
        : strided(to_host(tensor.storage()), tensor, c10::DispatchKey::CPU);
    tensors.emplace_back(tensor, host);
    return host;
  }
  Tensor to_device(const Tensor& host) {
    if (!host.defined() || !on_device || !host.is_cpu()) return host;
    for (auto& [there, here] : tensors)
      if (here.unsafeGetTensorImpl() == host.unsafeGetTensorImpl()) return there;
    if (host.is_sparse())
      return coo(to_device(sparse(host)->indices()), to_device(sparse(host)->values()), host, c10::DispatchKey::SparseCUDA);
    return strided(to_device(host.storage()), host, c10::DispatchKey::CUDA);
  }
  // What the operator changed of its arguments besides their numbers: sizes, storages, entries.
  void write_back() {
    for (size_t i = 0; i < tensors.size(); ++i) {
      auto [there, host] = tensors[i];
      if (there.is_sparse()) {
        Tensor indices = to_device(sparse(host)->indices()), values = to_device(sparse(host)->values());
        sparse(there)->set_indices_and_values_unsafe(indices, values);
        sparse(there)->set_coalesced(sparse(host)->coalesced());
        continue;
      }
      auto* impl = there.unsafeGetTensorImpl();
      Storage storage = to_device(host.storage());
      if (storage.unsafeGetStorageImpl() != there.storage().unsafeGetStorageImpl()) impl->set_storage_keep_dtype(storage);
      if (there.sizes() != host.sizes() || there.strides() != host.strides() || there.storage_offset() != host.storage_offset())
        impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }
};

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call;
  auto map = [&](c10::IValue& value, auto change) {
    if (value.isTensor()) {
      value = change(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> out;
      for (const Tensor& tensor : value.toTensorVector()) out.push_back(change(tensor));
      value = out;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> out;
      for (std::optional<Tensor> tensor : value.toOptionalTensorList())
        out.push_back(tensor ? std::optional<Tensor>(change(*tensor)) : tensor);
      value = out;
    }
  };
  const size_t num_arguments = op.schema().arguments().size(), first = stack->size() - num_arguments;
  for (size_t i = first; i < first + num_arguments; ++i) {
    auto& value = (*stack)[i];
    map(value, [&](const Tensor& tensor) { return call.to_host(tensor); });
    if (value.isStorage()) value = call.to_host(value.toStorage());
    if (value.isGenerator()) value = c10::IValue();
    if (value.isDevice() && value.toDevice().is_cuda()) {
      call.on_device = true;
      value = c10::Device(at::kCPU);
    }
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(stack);
  }
  call.write_back();
  for (size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i)
    map((*stack)[i], [&](const Tensor& tensor) { return call.to_device(tensor); });
}

const auto fallback = [] { return torch::CppFunction::makeFromBoxedFunction<&run_on_host>(); };

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(fallback()); }
TORCH_LIBRARY_IMPL(_, SparseCUDA, library) { library.fallback(fallback()); }
// Kernels for any device would else come before the fallback.
TORCH_LIBRARY_IMPL(aten, CUDA, library) { library.impl("copy_", fallback()); }
TORCH_LIBRARY_IMPL(aten, SparseCUDA, library) {
  for (const char* name : {"copy_", "clone", "empty_like", "zero_", "sum", "neg", "isnan", "isinf", "unsqueeze", "index_select",
                           "mul.Tensor", "mul_.Tensor", "div.Tensor", "div_.Tensor", "add.Tensor", "add_.Tensor", "coalesce",
                           "_coalesce", "_coalesced_", "is_coalesced", "indices", "_indices", "values", "_values", "_nnz",
                           "sparse_dim", "dense_dim", "_to_dense"})
    library.impl(name, fallback());
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kCuda); }
  c10::DeviceType type() const override { return static_type; }
  c10::Device exchangeDevice(c10::Device) const override { return kCuda; }
  c10::Device getDevice() const override { return kCuda; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

const bool has_memory = (c10::SetAllocator(c10::DeviceType::CUDA, &memory, 1), true);

}  // namespace

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  std::string showConfig() const override { return "a pretended CUDA device"; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  Device getDeviceFromPtr(void*) const override { return Device(kCUDA, 0); }
  Allocator* getPinnedMemoryAllocator() const override { return GetAllocator(kCPU); }
  const Generator& getDefaultGenerator(DeviceIndex = -1) const override { return detail::getDefaultCPUGenerator(); }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
