"""The only part of TensorFlow that Ray Data's reader of TFRecords uses: the message `Example`.

Source: tensorflow/core/example/{example,feature}.proto.
"""

from types import SimpleNamespace

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_LISTS = {"BytesList": "bytes", "FloatList": "float", "Int64List": "int64"}


def _example():  # type: ignore[no-untyped-def]
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="tensorflow", syntax="proto3"
    )
    for name, kind in _LISTS.items():
        of_kind = getattr(_FIELD, f"TYPE_{kind.upper()}")
        values = {"name": "value", "number": 1, "label": _FIELD.LABEL_REPEATED, "type": of_kind}
        file.message_type.add(name=name).field.add(**values)
    message = {"label": _FIELD.LABEL_OPTIONAL, "type": _FIELD.TYPE_MESSAGE}
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(_LISTS.items(), start=1):
        of_list = {"type_name": f".tensorflow.{name}", "oneof_index": 0, **message}
        feature.field.add(name=f"{kind}_list", number=number, **of_list)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    key = {"label": _FIELD.LABEL_OPTIONAL, "type": _FIELD.TYPE_STRING}
    entry.field.add(name="key", number=1, **key)
    entry.field.add(name="value", number=2, type_name=".tensorflow.Feature", **message)
    every = {"label": _FIELD.LABEL_REPEATED, "type": _FIELD.TYPE_MESSAGE}
    of_entries = ".tensorflow.Features.FeatureEntry"
    features.field.add(name="feature", number=1, type_name=of_entries, **every)
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type_name=".tensorflow.Features", **message)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


train = SimpleNamespace(Example=_example())
