"""What a projector takes, by estimate: libmtmd tells of it only when it has loaded one."""

from runnerd.engine.llama.gguf import GGUFHeader
from runnerd.engine.llama.recurrent import F32_BYTES

# Of each patch a graph holds at once what goes into a layer, what that is added to, queries, keys
# and values, and what comes out, beside the feed-forward net's values.
N_HELD = 6
N_COPIES = 3  # of pixels as they are read and computed with, and of the rows that are handed over
GRAPH_BYTES = 4 << 20  # measured: the least that any projector takes beside its tensors


def projector_bytes_of(header: GGUFHeader) -> int:
    """Return the tensors of a projector, and about what it encodes its largest image with.

    Attention is taken to be computed without a matrix of all patches by all. A file may name more
    pixels than its kind of projector ever takes: then it is too much.
    """

    def size(name: str) -> int:
        return header.number(f"vision.{name}") or 0

    patch_pixels = size("patch_size") ** 2
    n_pixels = max(size("image_size") ** 2, size("image_max_pixels"))
    n_patches = n_pixels // patch_pixels if patch_pixels else 0
    n_copied = N_COPIES * (3 * patch_pixels + size("projection_dim"))
    n_values = n_copied + N_HELD * size("embedding_length") + size("feed_forward_length")
    n_bytes = sum(each.n_bytes for each in header.tensors.values())
    return n_bytes + n_patches * n_values * F32_BYTES + GRAPH_BYTES
