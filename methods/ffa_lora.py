"""FFA-LoRA: Sun, Li, Li and Ding 2024 (ICLR), "Improving LoRA in Privacy-preserving Federated Learning".

Of LoRA's two matrices A keeps its random initial values, which all clients know from the seed; B is trained and
averaged. As all products B_i A share A, their mean is (mean of B_i) A: the aggregation is exact.
"""

from bench.method import METHODS, Client, Method, Params, Program, Server, State, Train, Upload, cross_entropy, join


@METHODS.register("ffa_lora")
class FFALoRA(Method):
    """LoRA whose A stays as it was drawn: B, and what else is trained beside the adapters, is averaged."""

    adapter = "lora"
    mean_of = ("model",)

    def init(self, server: Server) -> None:
        w = server.initial_model()
        server.state["model"] = w.without(*w.spec.named("lora_a"))

    def init_client(self, server: Server, client: Client) -> None:
        w = server.initial_model()
        client.state["a"] = w.part(*w.spec.named("lora_a"))

    def client_round(self, client: Client, down: State) -> Program:
        w = yield from self.trained(client, down)
        yield Upload({"model": w.without(*w.spec.named("lora_a"))})
        return w

    def trained(self, client: Client, down: State, epochs: int | None = None) -> Program:
        """The received model after local training with frozen A."""
        w, only = join(down["model"], client.state["a"]), {"w": tuple(down["model"].tensors())}
        trained = yield Train({"w": w}, loss=cross_entropy, only=only, epochs=epochs)
        return trained["w"]

    def generic(self, server: Server) -> Params:
        w = server.initial_model()
        return join(server.state["model"], w.part(*w.spec.named("lora_a")))

    def adapt(self, server: Server, client: Client, down: State, epochs: int) -> Program:
        return (yield from self.trained(client, down, epochs))
