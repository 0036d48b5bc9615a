"""humigence-supervise: babysits one torchrun job until it is done."""

__version__ = "0.1.0"
