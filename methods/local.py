"""Local: every client trains alone, the reference that personalization has to beat."""

from bench.method import METHODS, Client, Method, Params, Program, Server, State, Train, cross_entropy


@METHODS.register("local")
class Local(Method):
    """All clients train in every round, so that their budget is that of the federated methods at full participation."""

    trains = "pm"
    everyone = True
    mixes_models = True

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model(client.id)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": client.state["personal"]}, loss=cross_entropy)
        client.state["personal"] = trained["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]
