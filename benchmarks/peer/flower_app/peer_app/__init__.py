"""FedAvg as a Flower app: rounds without training, or training of fedquilt's ConvNet on Fashion-MNIST."""
