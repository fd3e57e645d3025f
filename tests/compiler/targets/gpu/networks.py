"""The five workloads with fewer and smaller layers, quantised or in float32."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from vdla.bench.net import Net


def resnet(quantized: bool) -> onnx.ModelProto:
    net = Net("resnet", quantized)
    x = net.max_pool(net.conv(net.input(1, 3, 20, 20), 8, 7, 2), 3, 2)
    for channels, stride in ((8, 1), (20, 2)):
        y = net.conv(net.conv(x, channels, 3, stride), channels, 3, relu=False)
        if stride != 1:
            x = net.conv(x, channels, 1, stride, relu=False)
        x = net.add(y, x)
    net.output(net.dense(net.global_average(x), 10))
    return net.model()


def mobilenet(quantized: bool) -> onnx.ModelProto:
    net = Net("mobilenet", quantized)
    x = net.conv(net.input(1, 3, 15, 15), 8, 3, 2)
    for channels, stride in ((12, 1), (20, 2)):
        depth = net.shapes[x][1]
        x = net.conv(net.conv(x, depth, 3, stride, groups=depth), channels, 1)
    net.output(net.dense(net.global_average(x), 10))
    return net.model()


def dcgan(quantized: bool) -> onnx.ModelProto:
    net = Net("dcgan", quantized)
    x = net.reshape(net.dense(net.input(1, 10), 16 * 4, relu=True), 1, 16, 2, 2)
    x = net.conv_transpose(x, 8, 4, 2, 1)
    net.output(net.unary("Tanh", net.conv_transpose(x, 3, 4, 2, 1, relu=False)))
    return net.model()


def dqn(quantized: bool) -> onnx.ModelProto:
    net = Net("dqn", quantized)
    x = net.input(1, 4, 36, 36)
    for channels, kernel, stride in ((8, 8, 4), (12, 4, 2), (12, 3, 1)):
        x = net.conv(x, channels, kernel, stride, pad=0)
    net.output(net.dense(net.dense(net.flatten(x), 24, relu=True), 18))
    return net.model()


def lstm(quantized: bool) -> onnx.ModelProto:
    net, width = Net("lstm", quantized), 12
    x = net.token(1, 30, width)
    hidden, cell = (net.input(1, width, name=name) for name in ("h", "c"))
    gates = net.add(net.dense(x, 4 * width), net.dense(hidden, 4 * width), relu=False)
    i, f, o, new = net.split(gates, 4)
    kept = net.binary("Mul", net.unary("Sigmoid", f), cell)
    learned = net.binary("Mul", net.unary("Sigmoid", i), net.unary("Tanh", new))
    cell = net.binary("Add", kept, learned)
    x = net.binary("Mul", net.unary("Sigmoid", o), net.unary("Tanh", cell))
    net.output(cell, "c_out")
    net.output(net.dense(x, 30), "logits")
    return net.model()


NETWORKS: dict[str, Callable[[bool], onnx.ModelProto]] = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "dcgan": dcgan,
    "dqn": dqn,
    "lstm": lstm,
}
