#pragma once

#include "exec/links/tcp_connect.hpp"
#include "exec/outer/peers.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace isobar::exec {

/// Peers over TCP, with TLS if `TcpOptions::tls` is set: two links for each pair of workers, one each way. A message of
/// 64 KiB or more is divided among all connections of a link.
class ConnectedPeers final : public Peers {
 public:
  /// Connects worker `self` with all others, of which `workers` has the addresses; returns once all are connected with
  /// each other. `channel`: distinguishes these links
  /// from others of the same run. Keepalive stays on, so that a machine that has become unreachable counts as closed
  /// about 9 s later.
  /// @throws as connect_links does, and Failure of a worker that leaves while others connect.
  ConnectedPeers(std::size_t self, const std::vector<Endpoint>& workers, std::uint32_t channel,
                 const TcpOptions& options, TcpListener listener);
  ~ConnectedPeers() override;

  std::size_t self() const override;
  void exchange(std::span<PeerTransfer> transfers, Seconds limit) override;
  PeerTraffic traffic() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
