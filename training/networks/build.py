"""A network from its configuration."""

from quatserve.training.networks.residual import Network, NetworkConfig
from quatserve.training.networks.teacher import Teacher, TeacherConfig

AnyNetwork = Network | Teacher


def build_network(config: NetworkConfig | TeacherConfig) -> AnyNetwork:
    return Teacher(config) if isinstance(config, TeacherConfig) else Network(config)
