"""The reference worker: a resumable byte-level language model trained with DDP."""
