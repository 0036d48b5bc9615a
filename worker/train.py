"""The path people type after `torchrun`; the training itself is humigence_worker.train."""

import sys

from humigence_worker.train import main

if __name__ == "__main__":
    sys.exit(main())
