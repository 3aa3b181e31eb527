"""FedEx-LoRA: Singhal, Ponkshe and Vepakomma 2025 (ACL), "FedEx-LoRA: Exact Aggregation for Federated and Efficient
Fine-Tuning of Large Language Models", eqs. 12 to 16.

The mean of the clients' products B_i A_i is not the product of the means. The difference, a residual of high rank, is
added to the weight of the layer, which is thus shared although no client trains it.
"""

from dataclasses import replace

from bench.method import (
    METHODS, Client, Message, Method, Params, Program, Server, State, Train, Upload, cross_entropy, join, mean,
)  # fmt: skip
from methods.lora import layers_of, product, replaced, scale


@METHODS.register("fedex_lora")
class FedExLoRA(Method):
    """LoRA whose two matrices are averaged; what this leaves out of the mean update goes into the layers' weights."""

    adapter = "lora"
    moves_base = True

    def init(self, server: Server) -> None:
        server.state["model"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"]}

    def client_round(self, client: Client, down: State) -> Program:
        w = yield from self.trained(down)
        yield Upload({"adapters": w.without(*base(w))})
        return w

    def trained(self, down: State, epochs: int | None = None) -> Program:
        """The received model after local training of all but the layers' own weights."""
        only = {"w": tuple(down["model"].without(*base(down["model"])).tensors())}
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, only=only, epochs=epochs)
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        old = server.state["model"]
        new = join(mean(messages, "adapters"), old.part(*base(old)))
        weights = {}
        for layer in layers_of(new):
            products = [replace(m, values={"product": product(m["adapters"], layer)}) for m in messages]
            residual = mean(products, "product") - product(new, layer)
            weights[f"{layer}.weight"] = new.tensors()[f"{layer}.weight"] + scale(new, layer) * residual
        server.state["model"] = replaced(new, weights)

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        return (yield from self.trained(down, epochs))


def base(w: Params) -> tuple[str, ...]:
    """Names of the weights that LoRA's products are added to."""
    return tuple(f"{layer}.weight" for layer in layers_of(w))
