"""Programs that receive a run's results while it goes on: TensorBoard and MLflow. They are optional packages."""
