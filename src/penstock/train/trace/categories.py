"""What memory is for, as predictions list it."""

WEIGHTS = "weights"
OPTIMISER = "optimiser state"
FEATURES = "features"
TOPOLOGY = "topology"
BATCHES = "batches"
ACTIVATIONS = "activations"
GRADIENTS = "gradients"
LIBRARIES = "library workspace"
CONTEXT = "CUDA context"
PROCESS = "process"

CATEGORIES = (
    WEIGHTS,
    OPTIMISER,
    FEATURES,
    TOPOLOGY,
    BATCHES,
    ACTIVATIONS,
    GRADIENTS,
    LIBRARIES,
    CONTEXT,
    PROCESS,
)
"""In the order in which they are listed."""
