"""A checkout with the names that PFLlib's repository has, and FedAvg; or that of the variable PFLLIB."""

import os
from pathlib import Path
from textwrap import dedent

FILES = {
    "main.py": """
        import argparse
        import copy
        from torch import nn
        from flcore.servers.serveravg import FedAvg
        from flcore.trainmodel.models import *
        from utils.mem_utils import MemReporter
        from utils.result_utils import average_data

        if __name__ == "__main__":
            parser = argparse.ArgumentParser()
            parser.add_argument("-dev", "--device")
            parser.add_argument("-m", "--model")
            parser.add_argument("-algo", "--algorithm")
            parser.add_argument("-gr", "--global_rounds", type=int)
            parser.add_argument("-nc", "--num_clients", type=int)
            parser.add_argument("-lr", "--local_learning_rate", type=float)
            parser.add_argument("-lbs", "--batch_size", type=int, default=10)
            parser.add_argument("-mu", "--mu", type=float, default=0.0)
            args = parser.parse_args()
            args.model = Mclr_Logistic(64, num_classes=10)
            head = copy.deepcopy(args.model.fc)
            args.model.fc = nn.Identity()
            args.model = BaseHeadSplit(args.model, head)
            FedAvg(args, 0).train()
            average_data(dataset="digits")
            MemReporter().report()
        """,
    "flcore/trainmodel/models.py": """
        from torch import nn

        Mclr_Logistic = None

        class BaseHeadSplit(nn.Module):
            def __init__(self, base, head):
                super().__init__()
                self.base, self.head = base, head

            def forward(self, x):
                return self.head(self.base(x))
        """,
    "flcore/clients/clientbase.py": """
        import copy
        import torch
        from sklearn import metrics
        from torch.utils.data import DataLoader
        from utils.data_utils import read_client_data

        class Client:
            def __init__(self, args, id, train_samples, test_samples, **kwargs):
                self.model, self.id, self.train_samples = copy.deepcopy(args.model), id, train_samples
                self.batch_size, self.train_time_cost = args.batch_size, {"num_rounds": 0}
                self.loss = torch.nn.CrossEntropyLoss()
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.local_learning_rate)

            def load_train_data(self):
                return DataLoader(read_client_data("digits", self.id, is_train=True), self.batch_size, shuffle=True)

            def set_parameters(self, model):
                for new, old in zip(model.parameters(), self.model.parameters()):
                    old.data = new.data.clone()

            def train(self):
                self.model.train()
                for x, y in self.load_train_data():
                    self.optimizer.zero_grad()
                    self.loss(self.model(x), y).backward()
                    self.optimizer.step()

            def test_metrics(self):
                self.model.eval()
                for x, y in DataLoader(read_client_data("digits", self.id, is_train=False), self.batch_size):
                    correct = (torch.argmax(self.model(x), dim=1) == y).sum()
                return correct, metrics.roc_auc_score([], [])
        """,
    "flcore/servers/serverbase.py": """
        import copy
        import h5py
        import numpy as np
        from utils.data_utils import read_client_data

        class Server:
            def __init__(self, args, times):
                self.args, self.num_clients = args, args.num_clients
                self.global_model, self.clients = copy.deepcopy(args.model), []

            def set_slow_clients(self): ...

            def set_clients(self, kind):
                for i in range(self.num_clients):
                    n = len(read_client_data("digits", i, is_train=True))
                    self.clients.append(kind(self.args, i, n, 0, train_slow=False, send_slow=False))

            def select_clients(self):
                return list(np.random.choice(self.clients, 1))

            def aggregate_parameters(self):
                total = sum(client.train_samples for client in self.selected_clients)
                for server in self.global_model.parameters():
                    server.data.zero_()
                for client in self.selected_clients:
                    for server, local in zip(self.global_model.parameters(), client.model.parameters()):
                        server.data += local.data * client.train_samples / total

            def train(self):
                for _ in range(self.args.global_rounds + 1):
                    self.selected_clients = self.select_clients()
                    for client in self.clients:
                        client.set_parameters(self.global_model)
                    for client in self.clients:
                        client.test_metrics()
                    for client in self.selected_clients:
                        client.train()
                    self.aggregate_parameters()
                self.save_results()

            def save_results(self):
                h5py.File("results.h5", "w")
        """,
    "flcore/servers/serveravg.py": """
        from flcore.clients.clientbase import Client
        from flcore.servers.serverbase import Server

        class FedAvg(Server):
            def __init__(self, args, times):
                super().__init__(args, times)
                self.set_slow_clients()
                self.set_clients(Client)
        """,
    "utils/data_utils.py": "def read_client_data(*_, **__): raise OSError('no such folder')",
    "utils/mem_utils.py": """
        from calmsize import size

        class MemReporter:
            def report(self): size(0)
        """,
    "utils/result_utils.py": "def average_data(**_): raise OSError('no results')",
}


def checkout(folder: Path) -> Path:
    """The path of the checkout that the variable PFLLIB names, or of a small one written into a folder."""
    if "PFLLIB" in os.environ:
        return Path(os.environ["PFLLIB"])
    for name, text in FILES.items():
        file = folder / "system" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    return folder
