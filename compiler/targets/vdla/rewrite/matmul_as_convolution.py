"""Let the accelerator compute matrix products, and what is element by element around them: their
matrices become images.

A dense layer that reads a flattened image would wait for the host to move its elements. A
convolution with a kernel of the image's size is the same product::

    f = Reshape(x [N,C,H,W]) [N,C*H*W];  y = QDense(f, w [OC,C*H*W])
      ->
    p = QConv2d(x, w [OC,C,H,W]) [N,OC,1,1];  y = Reshape(p) [N,OC]

Rows of any other dense layer, if they are more than the accelerator's batch, become positions of
one image, and the layer becomes a 1x1 convolution::

    y = QDense(x [N,K], w [OC,K]) [N,OC]
      ->
    x' = Transpose(Reshape(x)) [1,K,N,1];  y' = QConv2d(x', w [OC,K,1,1]) [1,OC,N,1]
    y = Reshape(Transpose(y'))

In a product of two activations, the leading dimensions of the matrices, such as heads, become
groups of channels, rows become positions and the dimension that is summed becomes channels, in
whole blocks (``'``)::

    y = QMatMul(a [..,M,K], b [..,K,N])
      ->
    y' = QGroupMatMul(a' [1,G*K',M,1], b' [1,G*K',N,1]) [1,G*N',M,1]
    y = Reshape(Transpose(Slice(Reshape(y'))))

An operand that is an image of the accelerator with other dimensions, which it mostly is, is read as
that image: nothing moves. Several groups read one group of it where heads of queries share keys and
values, which a model repeats for them. Where its channels and positions have changed roles, it is
transposed on the accelerator (TransposeGroups). Any other operand is laid out by the host.

Additions, products of elements, rotary embeddings and tables of images work on them, too, so that
nothing moves between two products. So does the addition of a constant for each channel, which has
no integer form elsewhere (QAddChannels). What is a function of one int8 tensor becomes one table.

A softmax between two products, where the vector unit has a table of 16 bits, wants its rows along
positions: the product before it is that of its operands exchanged, and the one behind it transposes
what it reads.

Rows of a cache that the host holds, with new rows behind them, are an image whose end the
accelerator replaces. Where a product reads it transposed, the host lays it out so, and only the new
rows are transposed on the accelerator.

A layer normalisation of such an image finds the factors and offsets of its positions first
(RowDigits), and then computes all elements (QNormalise).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ....graph.ir import Graph, Node, Tensor, infer
from ....graph.ops.base import Op
from ....graph.ops.convolution import QConv2d
from ....graph.ops.group_matmul import POSITIONS, QGroupMatMul, TransposeGroups
from ....graph.ops.integer import QAdd, QAddFixed, QMul, QTable
from ....graph.ops.layout import BlockReshape
from ....graph.ops.linear import QDense, QMatMul
from ....graph.ops.movement import (
    Concat,
    Identity,
    Pad,
    ReplaceEnd,
    Reshape,
    Slice,
    Transpose,
)
from ....graph.ops.normalisation import QLayerNorm, QNormalise, RowDigits
from ....graph.ops.rotation import QRotate
from ....graph.ops.softmax import QTableSoftmax
from ....graph.passes.dead_code import dead_code
from ..attention_mask import find_visible_keys
from ..machine import ACCELERATOR, HOST, vector_loops
from .fold_into_tables import find_table_function
from .quantise_constant_add import match_constant_add

MOVES = (Identity, Reshape, Slice, Transpose)
#: Operators of single elements, whose operands have one shape.
ELEMENTWISE = (QAdd, QAddFixed, QMul, QTable)
#: From an image [1, C, N, 1] to a column [N, C, 1, 1], and back.
TURN = (2, 1, 0, 3)
WHY = "a matrix becomes the places of an image, or these become a matrix"
FUNCTION = "a function of one tensor, whose steps are a table"
FACTORS = "what a normalisation multiplies and adds, for each place"
BEHIND = "places of an image behind those that are there"
TRANSPOSED = "channels and places change roles for a product of two activations"


@dataclass(frozen=True)
class Limits:
    """What the accelerator can do with matrices that are images.

    Attributes
    ----------
    block : channels of a block
    batch : rows of a dense layer that stay rows
    most_pixels : pixels of an image whose kernel fits the scratchpads
    has_table : a table takes the vector unit one pass
    longest_row : the most elements of a softmax on the vector unit
    inp_depth : the entries of ``inp``
    most_mask_rows : the most different rows of its mask
    most_channels : the most channels of a layer normalisation
    tile_step : images are read as weights if their positions are a multiple of this
    """

    block: int
    batch: int = 1
    most_pixels: int = 0
    has_table: bool = False
    longest_row: int = 0
    inp_depth: int = 0
    most_mask_rows: int = 0
    most_channels: int = 0
    tile_step: int = 1


def matmul_as_convolution(graph: Graph, limits: Limits) -> Graph:
    """Rewrite the dense layers and the products of two activations that are on the accelerator, and
    what is around them."""
    images = _Images(graph, limits)
    rules = [
        images.absorb_flatten, images.rewrite_dense, images.rewrite_elementwise, images.product,
        images.rewrite_channel_bias, images.rewrite_softmax, images.normalise, images.rotate,
        images.concatenate, images.flatten, images.read_directly,
    ]  # fmt: skip
    for node in map(images.fold_table, graph.nodes):
        if not any(rule(node) for rule in rules):
            images.append(node)
    return dead_code(graph.with_nodes(images.nodes, *images.made.values()))


def _is_matrix(order: np.ndarray, image: tuple[int, ...]) -> bool:
    """Whether the elements of a tensor are rows and columns of a matrix [N, C] that is an image
    [1, C, N, 1]."""
    _, channels, positions, _ = image
    matrix = np.arange(channels * positions).reshape(channels, positions).T
    return order.size == matrix.size and (order.reshape(matrix.shape) == matrix).all()


def _places_of_groups(shape: tuple[int, int, int]) -> np.ndarray:
    """The index in an image [1, G*C, N, 1] of each element of matrices [G, N, C]."""
    groups, positions, channels = shape
    g, p, c = np.ogrid[:groups, :positions, :channels]
    return (g * channels + c) * positions + p


def _is_move(node: Node) -> bool:
    """Whether a node only puts elements in other places, some of them several times."""
    return isinstance(node.op, MOVES) or (isinstance(node.op, Pad) and node.op.mode == "wrap")


def _is_product(node: Node) -> bool:
    return isinstance(node.op, QMatMul) and node.target == ACCELERATOR


@dataclass
class _Images:
    """The graph while it is rewritten: its nodes, the tensors that are new, and what makes each."""

    graph: Graph
    limits: Limits
    nodes: list[Node] = field(default_factory=list)
    made: dict[str, Tensor] = field(default_factory=dict)
    producers: dict[str, Node] = field(default_factory=dict)
    #: Images whose end is replaced: what was before it, its groups, rows and columns, and the end.
    grown: dict[str, tuple[str, tuple[int, int, int], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: Whether there are products of two activations, or dense layers of several rows.
        self.has_matrices = any(_is_product(n) or self.is_tall(n) for n in self.graph.nodes)
        self.before = self.graph.producers()
        softmaxes = filter(self.is_softmax_of_rows, self.graph.nodes)
        self.exchanged = set(map(self.find_scores, softmaxes))

    def is_tall(self, node: Node) -> bool:
        """Whether a node is a dense layer of more rows than the batch."""
        return isinstance(node.op, QDense) and self[node.inputs[0]].shape[0] > self.limits.batch

    def is_softmax_of_rows(self, node: Node) -> bool:
        """Whether a node is a softmax that the vector unit can compute: along the last axis of
        matrices, whose rows are not too long, and of as many as can be read as weights; and its
        mask does not have too many."""
        if not isinstance(node.op, QTableSoftmax):
            return False
        shape = self.graph.result(node).shape
        fits = shape[-1] <= self.limits.longest_row and shape[-2] % self.limits.tile_step == 0
        fits = fits and bool(vector_loops(shape[-1]))
        for name in node.inputs[1:]:  # two rows lie in inp then, and the mask if it is computed
            mask, block = self.graph[name], self.limits.block
            of_mask = 0 if mask.is_constant else self.whole((1, *mask.shape)[-2]) // block
            fits = fits and (2 + of_mask) * shape[-1] <= self.limits.inp_depth
        if not (fits and node.op.axis == len(shape) - 1):
            return False
        for name in node.inputs[1:]:
            mask = self.mask_rows(node, name)
            if mask is None:  # computed for all matrices alike, or for all rows
                of_matrix = (1, *self.graph[name].shape)[-2:]
                alike = prod(self.graph[name].shape) == prod(of_matrix)
                of_rows = of_matrix == shape[-2:] and shape[-2] % self.limits.block == 0
                return alike and (of_rows or of_matrix == (1, shape[-1]))
            _, rows = find_visible_keys(mask, self.limits.block)
            if len(rows) > self.limits.most_mask_rows:
                return False
        return True

    def mask_rows(self, softmax: Node, name: str) -> np.ndarray | None:
        """The mask of a softmax along the last axis for all its rows, [rows, keys]; None if it is
        computed. Rows behind the last one of a matrix, up to a whole block, are like that one."""
        data, shape = self.graph[name].data, self.graph.result(softmax).shape
        if data is None:
            return None
        matrices = np.broadcast_to(data, shape).reshape(-1, *shape[-2:])
        behind = self.whole(shape[-2]) - shape[-2]
        return np.pad(matrices, ((0, 0), (0, behind), (0, 0)), "edge").reshape(-1, shape[-1])

    def find_scores(self, softmax: Node) -> str:
        """The result of the product that a softmax takes, perhaps with functions of one int8
        or constants that are added between them; or what is there instead."""
        name = softmax.inputs[0]
        while (node := self.before.get(name)) is not None:
            node = self.fold_table(node)
            computed = [name for name in node.inputs if not self.graph[name].is_constant]
            if not (len(computed) == 1 and isinstance(node.op, ELEMENTWISE)):
                break
            name = computed[0]
        return name

    def absorb_flatten(self, node: Node) -> bool:
        """Append a convolution for a dense layer that reads an image of the accelerator which the
        host would flatten; whether it does."""
        if not (isinstance(node.op, QDense) and node.target == ACCELERATOR):
            return False
        image, order, moves = self.origin(node.inputs[0])
        shape = self[image].shape
        is_flattened = moves and self.is_made(image) and (np.diff(order.reshape(-1)) == 1).all()
        if not (is_flattened and len(shape) == 4 and shape[0] == len(order)):
            return False
        if self.has_matrices and shape[2:] == (1, 1):
            return False  # a matrix of one row
        if shape[2] * shape[3] > self.limits.most_pixels:
            return False
        product, inputs = self.make_convolution(node, image, shape[2:])
        pixel = f"{node.output}.pixel"
        self.add(node.name, product, inputs, pixel, ACCELERATOR, node.reason)
        vector = Reshape(self.graph.result(node).shape)
        name, reason = f"{node.name}.flat", "no data moves"
        self.append(Node(name, vector, (pixel,), node.output, ACCELERATOR, reason))
        return True

    def rewrite_dense(self, node: Node) -> bool:
        """Append a 1x1 convolution for a dense layer of more rows than the batch; whether it
        does."""
        if not (isinstance(node.op, QDense) and self.has_rows(node)):
            return False
        rows, channels = self[node.inputs[0]].shape
        image, order = self.find_reordered(node.inputs[0])
        if not image:
            image = self.unmoved(self.lay_out_matrix(node.inputs[0], (1, channels, rows, 1)))
        product, inputs = self.make_convolution(node, image, (1, 1), order)
        moves: list[Op] = [Transpose(TURN)] if rows > 1 else []
        moves.append(Reshape(self.graph.result(node).shape))
        self.on_images(node, product, inputs, moves, node.reason)
        return True

    def find_reordered(self, name: str) -> tuple[str, np.ndarray | slice]:
        """The image [1, C, N, 1] of a matrix [N, C] whose bytes an image of another shape has, but
        for the order of channels, and that order (:meth:`find_order`); an empty string for any
        other matrix. So heads that were rows of one product become channels."""
        source, origin, _ = self.origin(name)
        (rows, channels), shape = origin.shape, self[source].shape
        if not self.is_column(source) or prod(shape) != origin.size or shape[1] == channels:
            return "", slice(None)
        index = np.full(shape, -1)
        index.reshape(-1)[origin.T.reshape(-1)] = np.arange(origin.size)
        order = self.find_order(index, channels)
        if order is None:
            return "", slice(None)
        return self.reblocked(source, (1, channels, rows, 1)), order

    def find_order(self, index: np.ndarray, channels: int) -> np.ndarray | None:
        """The order of channels in which a matrix of so many ``channels``, as an image
        [1, C, N, 1], has the same bytes in memory as another image; None if no order does.

        ``index`` has the other image's shape: the index in the matrix [C, N] of each element. The
        result says which channel of the matrix comes at each place."""
        block, rows = self.limits.block, index.size // channels
        if channels % block or index.shape[1] % block:
            return None
        shape = (1, channels, rows, 1)
        flat = BlockReshape((1, index.size), block).evaluate(index)
        places = BlockReshape(shape, block).evaluate(flat).reshape(channels, rows)
        order = places[:, 0] // rows
        is_order = (np.sort(order) == np.arange(channels)).all()
        alike = (places == order[:, None] * rows + np.arange(rows)).all()
        return order if is_order and alike else None

    def make_convolution(
        self, node: Node, image: str, kernel: tuple[int, ...],
        order: np.ndarray | slice = slice(None),
    ) -> tuple[Op, tuple[str, ...]]:  # fmt: skip
        """The convolution of an image with the weights of a dense layer, and its operands.
        ``order``: which of the layer's channels those of the image are."""
        op, (_, weight, bias) = node.op_as(QDense), self.graph.operands(node)
        assert weight.data is not None
        data = weight.data[:, order].reshape(len(weight.data), -1, *kernel)
        inputs = (image, self.constant(f"{node.output}.kernel", data), bias.name)
        return QConv2d((1, 1), (0, 0, 0, 0), (1, 1), 1, op.x_zero_point, op.requant), inputs

    def has_rows(self, node: Node) -> bool:
        """Whether a node on the accelerator makes a matrix of more rows than the batch, or of as
        many between products of two activations."""
        shape = self.graph.result(node).shape
        least = self.limits.batch + (not self.has_matrices)
        return node.target == ACCELERATOR and len(shape) == 2 and shape[0] >= least

    def product(self, node: Node) -> bool:
        """Append the product of two images, and its way back to a matrix; whether it does. Rows are
        its positions, and columns its channels, in whole blocks; where a softmax follows, its
        operands are exchanged, and so are rows and columns."""
        if not _is_product(node):
            return False
        op, (a, b) = node.op_as(QMatMul), node.inputs
        *lead, rows, depth = self[a].shape
        groups, columns = prod(lead), self[b].shape[-1]
        # The image comes first, then what is read as weights.
        operands = [
            (a, (groups, rows, depth), op.a_zero_point, True),
            (b, (groups, depth, columns), op.b_zero_point, False),
        ]
        positions, channels = rows, columns
        if exchanged := node.output in self.exchanged:
            operands.reverse()
            positions, channels = columns, rows
        image, weights = operands
        second, b_readers, is_filled = self.operand(node, *weights)
        first, a_readers, _ = self.operand(node, *image, is_filled=is_filled)
        width, zero_points = self.whole(channels), (image[2], weights[2])
        product = QGroupMatMul(
            groups, width, positions, *zero_points, op.requant, a_readers, b_readers
        )
        made = self.add(
            node.name, product, (first, second), f"{node.output}.image", ACCELERATOR, node.reason
        )
        made = self.moved(node, Reshape((groups, width, positions)), made, "apart")
        if width != channels:  # without what fills blocks
            some = Slice((0, 0, 0), (1, 1, 1), (groups, channels, positions))
            made = self.moved(node, some, made, "kept")
        if not exchanged:
            made = self.moved(node, Transpose((0, 2, 1)), made, "rows")
        self.moved_back(node, Reshape(self.graph.result(node).shape), made)
        return True

    def rewrite_softmax(self, node: Node) -> bool:
        """Append a softmax along the positions of an image that has the rows of its matrices as
        channels; whether it does."""
        if not self.is_softmax_of_rows(node):
            return False
        source, order, moves = self.origin(node.inputs[0])
        *lead, rows, columns = order.shape
        groups, width = prod(lead), self.whole(rows)
        if not (moves and self.is_image(source, groups * width, columns)):
            return False
        rows_of_groups = np.arange(groups * width * columns).reshape(groups, width, columns)
        if (order.reshape(groups, rows, columns) != rows_of_groups[:, :rows]).any():
            return False
        op, inputs = replace(node.op_as(QTableSoftmax), axis=2), [source]
        for name in node.inputs[1:]:
            mask = self.mask_rows(node, name)
            if mask is not None:
                inputs.append(self.constant(f"{node.output}.mask.image", mask[None, :, :, None]))
                continue
            image, own = f"{name}.image", self[name].shape[:-1][-1:]
            op = replace(op, groups=groups * width // self.whole(prod(own)))
            if image not in self.made:
                self.lay_out_mask(name, prod(own), columns, image)
            inputs.append(image)
        reason = "on the vector unit, along the places of an image"
        self.on_images(node, op, tuple(inputs), moves, reason)
        return True

    def lay_out_mask(self, name: str, rows: int, columns: int, image: str) -> None:
        """Append the image of a computed mask, by the host; one row makes a block of equal ones."""
        shape, laid_out = Reshape((1, rows, columns, 1)), f"{name}.laid_out"
        more = self.whole(rows) - rows
        if more:
            name = self.add(laid_out, shape, (name,), f"{name}.row", HOST)
            again = Pad("wrap", (0, 0, 0, 0, 0, more, 0, 0))
            self.add(f"{laid_out}.block", again, (name,), image, HOST)
        else:
            self.add(laid_out, shape, (name,), image, HOST)

    def normalise(self, node: Node) -> bool:
        """Append a layer normalisation of the channels of an image, in its two operators; whether
        it does."""
        if not isinstance(node.op, QLayerNorm):
            return False
        image, order, moves = self.origin(node.inputs[0])
        source = self.as_column(image)
        if source != image:
            moves.insert(0, Reshape(self[image].shape))
        shape = self[source].shape
        if not (moves and self.is_column(source) and _is_matrix(order, shape)):
            return False
        whole = shape[1] % self.limits.block == shape[2] % self.limits.tile_step == 0
        fits = whole and shape[1] <= self.limits.most_channels
        if node.op.axis != order.ndim - 1 or not fits:
            return False
        images = [source]
        for name in node.inputs[1:]:  # what rounding lost
            low, places, _ = self.origin(name)
            low = self.as_column(low)
            if not self.is_column(low) or self[low].shape != shape or (places != order).any():
                return False
            images.append(low)
        op = RowDigits(node.op.numbers, self.limits.block)
        digits = self.once(f"{node.name}.factors", op, source, FACTORS)
        rest = QNormalise(replace(node.op, axis=1), self.limits.block)
        self.on_images(node, rest, (*images, digits), moves, "on the vector unit")
        return True

    def rotate(self, node: Node) -> bool:
        """Append a rotary embedding of the channels of an image whose heads are groups of whole
        blocks, twice for a head; whether it does. The host lays out cosines and sines."""
        if not (isinstance(node.op, QRotate) and node.target == ACCELERATOR):
            return False
        source, order, _ = self.origin(node.inputs[0])
        *lead, rows, width = (1, *order.shape)
        heads, factors = prod(lead), (1, *self[node.inputs[1]].shape)
        if node.op.axis != order.ndim - 1 or factors[-2:] != (rows, width):
            return False
        if prod(factors[:-2]) != 1:
            return False
        shape = (heads, rows, width)
        image = self.reorder(node.inputs[0], source, order.reshape(shape))
        if not image:
            return False
        cos, sin = (self.lay_out_matrix(name, (1, width, rows, 1)) for name in node.inputs[1:])
        moves = [Reshape((heads, width, rows)), Transpose((0, 2, 1)), Reshape(order.shape)]
        self.on_images(node, replace(node.op, axis=1), (image, cos, sin), moves, node.reason)
        return True

    def reorder(self, name: str, source: str, order: np.ndarray) -> str:
        """The image [1, G*C, N, 1] of matrices [G, N, C] that an image of the accelerator holds;
        where that is a product which nothing else reads, its channels may have another order. An
        empty string for any other image."""
        groups, rows, width = order.shape
        if not self.is_column(source):
            return ""
        if self.is_image(source, groups * width, rows):
            return source if (order == _places_of_groups(order.shape)).all() else ""
        node = self.producers[source]
        index = order.transpose(0, 2, 1).reshape(1, groups * width, rows, 1)
        channels = self.find_order(index, self[source].shape[1])
        if channels is None or not isinstance(node.op, QConv2d) or self.is_read_again(name):
            return ""
        image, weight, bias = node.inputs
        requant = node.op.requant
        if requant.multiplier.size > 1:
            multiplier, shift = requant.multiplier[channels], requant.shift[channels]
            requant = replace(requant, multiplier=multiplier, shift=shift)
        inputs = [image]
        for constant in (self[weight], self[bias]):
            assert constant.data is not None
            name = f"{constant.name}.reordered"
            inputs.append(self.constant(name, constant.data[channels]))
        product, result = replace(node.op, requant=requant), f"{source}.reordered"
        self.add(node.name, product, tuple(inputs), result, ACCELERATOR, node.reason)
        return self.reblocked(result, (1, groups * width, rows, 1))

    def is_read_again(self, name: str) -> bool:
        """Whether a tensor, or one that moves made it of, has more readers than one."""
        while True:
            readers = [node for node in self.graph.nodes if name in node.inputs]
            if len(readers) != 1 or name in self.graph.outputs:
                return True
            node = self.before.get(name)
            if node is None or not _is_move(node):
                return False
            name = node.inputs[0]

    def concatenate(self, node: Node) -> bool:
        """Append a concatenation of rows whose operands are images of the accelerator, or are laid
        out by the host; whether it does."""
        result = self.graph.result(node)
        if node.op != Concat(len(result.shape) - 2) or result.dtype != "int8":
            return False
        (*lead, positions, channels), tensors = result.shape, [self[name] for name in node.inputs]
        groups = prod(lead)
        if groups != 1 and channels % self.limits.block:
            return False
        inputs = []
        for tensor in tensors:
            source, order, _ = self.origin(tensor.name)
            shape = (groups, tensor.shape[-2], channels)
            is_there = self.is_image(source, groups * channels, shape[1])
            is_there = is_there and (order.reshape(shape) == _places_of_groups(shape)).all()
            inputs.append((tensor.name, shape, source if is_there else ""))
        if not any(source for *_, source in inputs):
            return False
        moves = [
            Reshape((groups, channels, positions)), Transpose((0, 2, 1)), Reshape(result.shape)
        ]  # fmt: skip
        if len(inputs) == 2 and not inputs[0][2]:
            (name, shape, _), (*_, new) = inputs
            images = self.with_room(node, name, shape, positions), new
            self.on_images(node, ReplaceEnd(POSITIONS), images, moves, BEHIND)
            self.grown[f"{node.output}.image"] = name, shape, new
            return True
        images = []
        for number, (name, shape, source) in enumerate(inputs):
            if not source and groups == 1:
                source = self.lay_out_matrix(name, (1, channels, shape[1], 1))
            images.append(source or self.lay_out(node, name, shape, 0, True, f"part{number}"))
        reason = "places of images one behind another"
        self.on_images(node, Concat(POSITIONS), tuple(images), moves, reason)
        return True

    def with_room(self, node: Node, name: str, shape: tuple[int, int, int], positions: int) -> str:
        """The image of an operand by the host, with room for more positions behind its own."""
        groups, count, channels = shape
        x = self.moved(node, Reshape(shape), name, "before")
        fill = self.constant(f"{node.output}.before.room", np.array(0, np.int8))
        pad = Pad("constant", (0, 0, 0, 0, positions - count, 0))
        x = self.moved(node, pad, x, "before.with room", fill)
        return self.lay_out(node, x, (groups, positions, channels), 0, True, "before.laid out")

    def flatten(self, node: Node) -> bool:
        """Append what makes one row of positions of an image's rows, for a Reshape by the host that
        does, with a Transpose before it or not; whether it does. Nothing moves."""
        if not isinstance(node.op, Reshape) or self[node.inputs[0]].dtype != "int8":
            return False
        source, order, _ = self.origin(node.inputs[0])
        shape = self[source].shape
        if not (self.is_made(source) and len(shape) == 4 and shape[0] == 1 < shape[3]):
            return False
        _, channels, height, width = shape
        image, result = (1, channels, height * width, 1), node.op.shape
        if result == image[:3] and (np.diff(order.reshape(-1)) == 1).all():
            moves: list[Op] = [Reshape(result)]
        elif result == (1, height * width, channels) and _is_matrix(order.reshape(result), image):
            moves = [Reshape(image[1:3]), Transpose((1, 0)), Reshape(result)]
        else:
            return False
        self.on_images(node, Reshape(image), (source,), moves, "no data moves")
        return True

    def fold_table(self, node: Node) -> Node:
        """The node; as a table, if it ends several steps that are a function of one tensor."""
        found = find_table_function(self.graph, self.before, node)
        if found is None:
            return node
        op, source = found
        target = ACCELERATOR if self.limits.has_table else HOST
        return replace(node, op=op, inputs=(source,), target=target, reason=FUNCTION)

    def rewrite_elementwise(self, node: Node) -> bool:
        """Append an element-wise operator on images, if all its operands are images in one order,
        or the host can lay them out in that order; whether it does."""
        if node.target != ACCELERATOR or not isinstance(node.op, ELEMENTWISE):
            return False
        if len({self[name].shape for name in node.inputs}) > 1:
            return False  # a value for each channel
        lays_out = self.has_matrices and len(self.graph.result(node).shape) > 2
        if not (lays_out or self.has_rows(node)):
            return False
        found = [self.origin(name) for name in node.inputs]
        first = next((o for o in found if o[2] and self.is_column(o[0])), None)
        if first is None:
            return False
        inputs = []
        for name, (source, order, _) in zip(node.inputs, found, strict=True):
            alike = self[source].shape == self[first[0]].shape and (order == first[1]).all()
            if alike and self.is_made(source):
                inputs.append(source)
            elif (data := self.graph[name].data) is not None and isinstance(node.op, QAdd):
                image = np.zeros(self[first[0]].shape, data.dtype)
                image.reshape(-1)[first[1]] = data
                inputs.append(self.constant(f"{node.output}.{name}.image", image))
            elif lays_out and _is_matrix(first[1], self[first[0]].shape):
                inputs.append(self.unmoved(self.lay_out_matrix(name, self[first[0]].shape)))
            else:
                return False
        self.on_images(node, node.op, tuple(inputs), first[2], node.reason)
        return True

    def rewrite_channel_bias(self, node: Node) -> bool:
        """Append a QAddChannels for a quantised addition of a constant to the channels of an image,
        if it can give every value of it; whether it does."""
        found = match_constant_add(self.graph, self.producers, node)
        if found is None:
            return False
        source, order, moves = self.origin(found.x)
        shape = self[source].shape
        op = found.operator() if self.is_column(source) and _is_matrix(order, shape) else None
        if op is None or shape[1] != len(op.const):
            return False
        self.on_images(node, op, (source,), moves, "on the vector unit, its constants as biases")
        return True

    def on_images(
        self, node: Node, op: Op, inputs: tuple[str, ...], moves: list[Op], reason: str
    ) -> None:
        """Append an operator on images, and the moves that make a node's result of its image."""
        image = self.add(node.name, op, inputs, f"{node.output}.image", ACCELERATOR, reason)
        for number, move in enumerate(moves[:-1]):
            image = self.moved(node, move, image, f"moved{number}")
        self.moved_back(node, moves[-1], image)

    def moved_back(self, node: Node, op: Op, image: str) -> None:
        """Append the last move by the host, to a node's own result."""
        self.append(Node(f"{node.name}.back", op, (image,), node.output, HOST, WHY))

    def lay_out_matrix(self, name: str, shape: tuple[int, ...]) -> str:
        """The image [1, C, N, 1] of a tensor whose elements are a matrix [N, C], by the host, which
        may have made it for a dense layer already."""
        _, channels, positions, _ = shape
        source, order, _ = self.origin(name)
        for node in self.nodes:
            if node.op == Transpose(TURN) and self[node.output].shape == shape:
                other, image, _ = self.origin(node.output)
                same = image.reshape(channels, positions) == order.reshape(positions, channels).T
                if other == source and same.all():
                    return node.output
        column = (positions, channels, 1, 1)
        x = self.add(f"{name}.places", Reshape(column), (name,), f"{name}.places.column", HOST)
        return self.add(f"{name}.turned", Transpose(TURN), (x,), f"{name}.places.image", HOST)

    def is_column(self, name: str) -> bool:
        """Whether a tensor is an image [1, C, N, 1] that the accelerator makes."""
        shape = self[name].shape
        return self.is_made(name) and len(shape) == 4 and shape[0] == shape[3] == 1

    def as_column(self, name: str) -> str:
        """The image [1, C, N, 1] of all places of an image that the accelerator makes, or the
        tensor itself if it is anything else."""
        shape = self[name].shape
        if not (self.is_made(name) and len(shape) == 4 and shape[0] == 1 < shape[3]):
            return name
        column = Reshape((1, shape[1], shape[2] * shape[3], 1))
        return self.once(f"{name}.column", column, name, "no data moves")

    def operand(
        self, node: Node, name: str, shape: tuple[int, int, int], zero_point: int, rows: bool,
        is_filled: bool = False,
    ) -> tuple[str, int, bool]:  # fmt: skip
        """The image of an operand, [1, groups * whole blocks, positions, 1], how many groups of the
        product read each of its groups, and whether its channels beyond the matrix are the zero
        point. Where it is transposed, its positions fill whole blocks.

        ``shape`` has groups, and rows and columns of a matrix. Its positions are the ``rows``, or
        the columns. ``is_filled``: what is beyond the matrix does not matter, because the other
        operand is the zero point there."""
        source, origin, _ = self.origin(name)
        order = origin.reshape(shape) if rows else origin.reshape(shape).transpose(0, 2, 1)
        groups, positions, depth = order.shape
        width, filled = self.whole(depth), self.whole(positions)
        g, p, c = np.ogrid[:groups, :positions, :depth]
        for readers in range(1, groups + 1):
            if groups % readers:
                continue
            as_it_is = (order == (g // readers * width + c) * positions + p).all()
            fits = self.is_image(source, groups // readers * width, positions)
            if fits and as_it_is and (is_filled or depth == width):
                return source, readers, depth == width
            turned = (order == (g // readers * filled + p) * depth + c).all()
            if self.is_image(source, groups // readers * filled, depth) and turned:
                if image := self.grown_turned(node, source, zero_point):
                    return image, readers, True
                turn = TransposeGroups(groups // readers, width, zero_point)
                label = "first.turned" if rows else "turned"
                return self.once(f"{node.name}.{label}", turn, source), readers, True
        return self.lay_out(node, name, shape, zero_point, rows), 1, True

    def grown_turned(self, node: Node, source: str, zero_point: int) -> str:
        """The transposition of an image whose end is replaced, where what is before that is whole
        blocks; an empty string for any other image. Its blocks, of whole columns, lie one behind
        another: they are the places of an image with one block for each group."""
        name, (groups, rows, columns), new = self.grown.get(source, ("", (0, 0, 0), ""))
        block, added = self.limits.block, self.whole(self[new].shape[2]) if new else 0
        if not name or rows % block:
            return ""
        label = f"{source}.turned"
        x = self.moved(node, Reshape((groups, rows // block, block, columns)), name, "second.apart")
        fill = self.constant(f"{label}.room", np.array(0, np.int8))
        pad = Pad("constant", (0, 0, 0, 0, 0, added // block, 0, 0))
        x = self.moved(node, pad, x, "second.with room", fill)
        x = self.moved(node, Transpose((0, 2, 1, 3)), x, "second.blocks")
        places = (rows + added) // block * columns
        there = self.moved(node, Reshape((1, groups * block, places, 1)), x, "second.image")
        end = self.once(f"{node.name}.end.turned", TransposeGroups(groups, added, zero_point), new)
        end = self.reblocked(end, (1, groups * block, added // block * columns, 1))
        image, op = f"{label}.places", ReplaceEnd(POSITIONS)
        self.add(f"{node.name}.turned", op, (there, end), image, ACCELERATOR, BEHIND)
        return self.reblocked(image, (1, groups * (rows + added), columns, 1))

    def reblocked(self, image: str, shape: tuple[int, ...]) -> str:
        """An image of another shape whose blocks lie in memory in the same order."""
        if self[image].shape == shape:
            return image
        for label, to in (("flat", (1, prod(shape))), ("reblocked", shape)):
            op, reason = BlockReshape(to, self.limits.block), "no data moves"
            image = self.add(
                f"{image}.{label}", op, (image,), f"{image}.{label}", ACCELERATOR, reason
            )
        return image

    def lay_out(
        self, node: Node, name: str, shape: tuple[int, int, int], zero_point: int, rows: bool,
        label: str = "",
    ) -> str:  # fmt: skip
        """The image of an operand by the host."""
        label = label or ("first" if rows else "second")
        x = self.moved(node, Reshape(shape), name, f"{label}.apart")
        if rows:
            x = self.moved(node, Transpose((0, 2, 1)), x, f"{label}.channels")
        groups, depth, positions = self[x].shape
        width = self.whole(depth)
        if width != depth:
            fill = self.constant(f"{node.output}.{label}.zero", np.array(zero_point, np.int8))
            op = Pad("constant", (0, 0, 0, 0, width - depth, 0))
            x = self.moved(node, op, x, f"{label}.blocks", fill)
        return self.moved(node, Reshape((1, groups * width, positions, 1)), x, f"{label}.image")

    def read_directly(self, node: Node) -> bool:
        """Append an operator of the accelerator that reads images of the accelerator where moves of
        the host change nothing between these and its operands; whether it does."""
        if node.target != ACCELERATOR:
            return False
        self.append(replace(node, inputs=tuple(map(self.unmoved, node.inputs))))
        return True

    def unmoved(self, name: str) -> str:
        """The image of the accelerator that holds exactly an operand, or a slice of such an image,
        or its transposition, or the operand itself."""
        source, origin, _ = self.origin(name)
        shape, image = self[name].shape, self[source].shape
        if self.is_made(source) and image == shape and (np.diff(origin.reshape(-1)) == 1).all():
            return source
        if not self.is_column(source):
            return name
        _, channels, positions, _ = image
        whole = channels % self.limits.block == positions % self.limits.tile_step == 0
        if whole and shape == (1, positions, channels, 1) and _is_matrix(origin, image):
            return self.once(f"{name}.turned", TransposeGroups(1, positions, 0), source)
        if shape[:2] == image[:2] and origin.size:
            return self.slice_positions(name, source, origin.reshape(-1)) or name
        return name

    def slice_positions(self, name: str, source: str, order: np.ndarray) -> str:
        """Some positions of an image, one behind another, in the shape of a tensor whose elements
        lie there; an empty string for any other tensor."""
        (_, channels, positions, _), shape = self[source].shape, self[name].shape
        first, count = int(order[0]), order.size // channels
        rows = np.arange(channels)[:, None] * positions + np.arange(first, first + count)
        if first + count > positions or (order.reshape(channels, count) != rows).any():
            return ""
        found = source
        if count < positions:
            some = Slice((0, 0, first, 0), (1, 1, 1, 1), (1, channels, count, 1))
            found = self.once(f"{name}.places", some, source, "some places of an image")
        if self[found].shape == shape:
            return found
        return self.once(f"{name}.flat", Reshape(shape), found, "no data moves")

    def is_image(self, name: str, channels: int, positions: int) -> bool:
        """Whether a tensor is such an image that the accelerator makes."""
        return self.is_made(name) and self[name].shape == (1, channels, positions, 1)

    def is_made(self, name: str) -> bool:
        """Whether the accelerator makes a tensor."""
        node = self.producers.get(name)
        return node is not None and node.target == ACCELERATOR

    def origin(self, name: str) -> tuple[str, np.ndarray, list[Op]]:
        """The tensor that the moves begin with, the index there of each element, and the moves from
        it to this tensor."""
        moves: list[Op] = []
        while (node := self.producers.get(name)) is not None and _is_move(node):
            if node.target == ACCELERATOR:
                break
            moves.append(node.op)
            name = node.inputs[0]
        shape = self[name].shape
        positions = np.arange(prod(shape), dtype=np.int32).reshape(shape)
        moves.reverse()
        for op in moves:
            positions = op.evaluate(positions)
        return name, positions, moves

    def moved(self, node: Node, op: Op, source: str, label: str, *others: str) -> str:
        """Append a move by the host, and return its result."""
        inputs = (source, *others)
        return self.add(f"{node.name}.{label}", op, inputs, f"{node.output}.{label}", HOST)

    def once(self, name: str, op: Op, source: str, reason: str = TRANSPOSED) -> str:
        """The result of an operator of the accelerator on one image, appended unless it is there:
        several products may have one operand."""
        for node in self.nodes:
            if (node.op, node.inputs, node.target) == (op, (source,), ACCELERATOR):
                return node.output
        return self.add(name, op, (source,), f"{name}.image", ACCELERATOR, reason)

    def add(
        self, name: str, op: Op, inputs: tuple[str, ...], output: str, target: str,
        reason: str = WHY,
    ) -> str:  # fmt: skip
        """Append a node with a new result."""
        shape, dtype = infer(op, tuple(self[i] for i in inputs), name)
        self.made[output] = Tensor(output, shape, dtype)
        self.append(Node(name, op, inputs, output, target, reason))
        return output

    def constant(self, name: str, data: np.ndarray) -> str:
        """A new constant tensor."""
        self.made[name] = Tensor.constant(name, data)
        return name

    def append(self, node: Node) -> None:
        """Append a node."""
        self.nodes.append(node)
        self.producers[node.output] = node

    def whole(self, channels: int) -> int:
        """The number of channels, rounded up to whole blocks."""
        return -(-channels // self.limits.block) * self.limits.block

    def __getitem__(self, name: str) -> Tensor:
        return self.made.get(name) or self.graph[name]
