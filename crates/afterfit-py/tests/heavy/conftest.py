"""Small problems: threads would only wait for each other."""

import os
import sys
from pathlib import Path

import torch

# (Read when Ray is imported.)
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DATA_DISABLE_PROGRESS_BARS="1")
sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
