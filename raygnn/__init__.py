"""raygnn: distributed GNN training on Ray, from Parquet tables to an evaluated model."""

from raygnn.early_interrupts import exit_on_early_interrupt
from raygnn.kernel_cache import keep_kernels
from raygnn.late_imports import install_lazy_imports

__version__ = "0.1.0"

exit_on_early_interrupt()
keep_kernels()
install_lazy_imports()
