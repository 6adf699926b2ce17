"""`penstock` whose jobs have internals, which no flag sets (src/penstock/train/internals.py).

Run: python benchmarks/with_internals.py '{"explain_delay": 1, "explain_steps": 5}' train --graph data/small ...
"""

import json
import sys
from functools import partial

from penstock.cli import main
from penstock.train import job

if __name__ == "__main__":
    # The command asks this module for the function when it is called.
    setattr(job, "make_job", partial(job.make_job, internals=json.loads(sys.argv.pop(1))))  # noqa: B010
    main()
