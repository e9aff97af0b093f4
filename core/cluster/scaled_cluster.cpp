#include "core/cluster/scaled_cluster.hpp"

#include <memory>
#include <utility>
#include <vector>

namespace isobar {

namespace {

Path scaled(Path path, const ClusterFactors& factors)
{
  return {path.latency * factors.latency, path.bandwidth * factors.bandwidth};
}

void scale(std::vector<SharedLink>& links, const ClusterFactors& factors)
{
  for (auto& link : links) link.bandwidth = link.bandwidth * factors.bandwidth;
}

class ScaledNetwork : public Network {
 public:
  ScaledNetwork(std::shared_ptr<const Network> network, const ClusterFactors& factors)
      : network_(std::move(network)), factors_(factors)
  {
  }

  Path path(std::size_t from, std::size_t to) const override { return scaled(network_->path(from, to), factors_); }
  std::vector<std::string> links(std::size_t from, std::size_t to) const override { return network_->links(from, to); }
  Path path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const override
  {
    return scaled(network_->path_with(from, to, link, factor), factors_);
  }
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
  {
    auto links = network_->shared_links(from, to);
    scale(links, factors_);
    return links;
  }

 private:
  std::shared_ptr<const Network> network_;
  ClusterFactors factors_;
};

}  // namespace

Cluster scaled(const Cluster& cluster, const ClusterFactors& factors)
{
  Cluster result = cluster;
  for (auto& device : result.devices) {
    device.pace *= factors.speed;
    device.speed = device.speed * factors.speed;
    for (auto& [dtype, speed] : device.speed_in) speed = speed * factors.speed;
    if (!device.machine) continue;
    device.machine->in = scaled(device.machine->in, factors);
    device.machine->out = scaled(device.machine->out, factors);
    scale(device.machine->in_links, factors);
    scale(device.machine->out_links, factors);
  }
  if (cluster.network) result.network = std::make_shared<ScaledNetwork>(cluster.network, factors);
  return result;
}

}  // namespace isobar
