"""The clients' half: add a constant to each array, or train the ConvNet."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a round. Without training, torch is not loaded."""
    arrays = message.content.array_records["arrays"]
    samples, config = 1, context.run_config
    if config["data"]:
        from peer_app.convnet import load_client, train_epoch

        images, labels = load_client(Path(str(config["data"])), int(context.node_config["partition-id"]))
        samples = len(labels)
        weights = train_epoch(arrays.to_torch_state_dict(), images, labels, float(config["lr"]), int(config["batch"]))
        reply = ArrayRecord(weights)
    else:
        reply = ArrayRecord([array + 1 for array in arrays.to_numpy_ndarrays()])
    metrics = MetricRecord({"num-examples": samples})
    return Message(content=RecordDict({"arrays": reply, "metrics": metrics}), reply_to=message)
