#include "exec/outer/connected_peers.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "exec/links/link_connections.hpp"
#include "exec/links/message_frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace isobar::exec {

namespace {

/// The links with another worker.
struct PeerLinks {
  PeerLinks(TcpLoop& loop, std::vector<Connection> to, std::vector<Connection> from)
      : out(std::move(to), loop), in(std::move(from), loop)
  {
  }

  bool is_busy() const { return out.is_busy() || in.is_busy(); }

  LinkConnections out;
  LinkConnections in;
  std::optional<Failure> failure;
};

/// A transfer under way over the links with its worker.
class MovingMessages {
 public:
  MovingMessages(PeerTransfer& transfer, PeerLinks& links) : transfer_(&transfer), links_(&links)
  {
    transfer.failure = links.failure;
    if (links.failure) {
      has_ended_ = true;
      return;
    }
    links.out.begin_message();
    links.in.begin_message();
    const std::span<const std::span<const std::byte>> outgoing = transfer.outgoing;
    const std::size_t total = total_of(outgoing);
    sent_ = {.payload = total};
    const auto stripes = stripes_of(outgoing, total, stripe_count(total, links.out.size()));
    std::vector<std::span<const std::byte>> first = {std::as_bytes(std::span(&sent_, 1))};
    first.insert(first.end(), stripes[0].begin(), stripes[0].end());
    links.out.write(0, first, sizeof sent_);
    for (std::size_t i = 1; i < stripes.size(); ++i) links.out.write(i, stripes[i], 0);
    links.in.read(0, {std::as_writable_bytes(std::span(&received_, 1))}, LinkConnections::no_payload);
  }
  // Transfers under way use these objects.
  MovingMessages(const MovingMessages&) = delete;
  MovingMessages& operator=(const MovingMessages&) = delete;
  ~MovingMessages() = default;

  /// Continues after events of the loop.
  void advance()
  {
    if (has_ended_) return;
    for (const auto* link : {&links_->in, &links_->out}) {
      if (const auto& fault = link->fault()) return fail(fault->kind, fault->text);
    }
    if (links_->in.is_busy()) return;
    if (!reads_payload_) {
      begin_payload();
    } else if (!links_->out.is_busy()) {
      has_ended_ = true;
    }
  }

  void fail(Failure::Kind kind, const std::string& why)
  {
    if (has_ended_) return;
    const std::size_t total = total_of<std::byte>(transfer_->incoming);
    transfer_->failure = environment_failure(
        kind,
        fmt::format("{} of {} B received, {} of {} B sent: {}", reads_payload_ ? links_->in.payload_moved() : 0, total,
                    links_->out.payload_moved(), sent_.payload, why),
        transfer_->worker);
    links_->failure = transfer_->failure;
    links_->in.close();
    links_->out.close();
    has_ended_ = true;
  }

  /// False once no buffer is in use.
  bool is_under_way() const { return !has_ended_ || links_->is_busy(); }

  std::uint64_t payload_sent() const { return links_->out.payload_moved(); }
  std::uint64_t payload_received() const { return reads_payload_ ? links_->in.payload_moved() : 0; }

 private:
  void begin_payload()
  {
    const std::span<const std::span<std::byte>> incoming = transfer_->incoming;
    const std::size_t expected = total_of(incoming);
    if (received_.mark != Frame::expected_mark || received_.header != 0) {
      return fail(Failure::Kind::Other, "received data is not a message of an exchange");
    }
    if (received_.payload != expected && received_.payload != 0) {
      return fail(Failure::Kind::Other, fmt::format("its message has {} B", received_.payload));
    }
    reads_payload_ = true;
    if (received_.payload == expected) {
      const auto stripes = stripes_of(incoming, expected, stripe_count(expected, links_->in.size()));
      for (std::size_t i = 0; i < stripes.size(); ++i) links_->in.read(i, stripes[i], 0);
    } else {
      transfer_->failure = environment_failure(Failure::Kind::Cancelled, "sent nothing", transfer_->worker);
    }
    advance();
  }

  PeerTransfer* transfer_;
  PeerLinks* links_;
  Frame sent_;
  Frame received_;
  bool reads_payload_ = false;
  bool has_ended_ = false;
};

}  // namespace

class ConnectedPeers::Impl {
 public:
  Impl(std::size_t self, const std::vector<Endpoint>& workers, std::uint32_t channel, const TcpOptions& options,
       TcpListener listener)
      : self_(self)
  {
    std::vector<LinkName> names;
    for (std::size_t other = 0; other < workers.size(); ++other) {
      if (other == self) continue;
      names.push_back({self, other, channel});
      names.push_back({other, self, channel});
    }
    const auto deadline = deadline_in(options.connect_deadline);
    auto connections = connect_links(self, workers, names, options, std::move(listener), deadline);
    for (std::size_t other = 0; other < workers.size(); ++other) {
      if (other == self) continue;
      links_.try_emplace(other, loop_, std::move(connections.at({self, other, channel})),
                         std::move(connections.at({other, self, channel})));
    }
    wait_for_all(time_until(deadline));
  }

  ~Impl()
  {
    for (auto& [worker, links] : links_) {
      links.out.close();
      links.in.close();
    }
    loop_.drain();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::size_t self() const { return self_; }
  PeerTraffic traffic() const { return traffic_; }

  void exchange(std::span<PeerTransfer> transfers, Seconds limit)
  {
    const auto deadline = deadline_in(limit);
    std::deque<MovingMessages> messages;  // which stay where they are
    for (auto& transfer : transfers) messages.emplace_back(transfer, links_.at(transfer.worker));
    try {
      while (true) {
        for (auto& message : messages) message.advance();
        if (std::ranges::none_of(messages, &MovingMessages::is_under_way)) break;
        wait(messages, limit, deadline);
      }
    } catch (...) {
      for (auto& message : messages) message.fail(Failure::Kind::Cancelled, "cancelled");
      loop_.drain();
      throw;
    }
    for (const auto& message : messages) {
      traffic_.sent += message.payload_sent();
      traffic_.received += message.payload_received();
    }
  }

 private:
  /// Connected links do not imply that the other workers are connected with each other.
  void wait_for_all(Seconds limit)
  {
    std::vector<PeerTransfer> transfers;
    for (const auto& [worker, links] : links_) transfers.push_back({.worker = worker, .outgoing = {}, .incoming = {}});
    exchange(transfers, limit);
    for (const auto& transfer : transfers) {
      if (!transfer.failure) continue;
      Failure failure = *transfer.failure;
      failure.text = fmt::format("worker {} while all connect: {}", transfer.worker, failure.text);
      throw_failure(failure);
    }
  }

  void wait(std::deque<MovingMessages>& messages, Seconds limit, Clock::time_point deadline)
  {
    if (loop_.poll()) return;
    throw_if_interrupted();
    // In short waits, because a signal that another thread receives does not wake this one.
    if (loop_.wait_until(std::min(deadline, deadline_in(Seconds(0.1)))) || Clock::now() < deadline) return;
    for (auto& message : messages) {
      message.fail(Failure::Kind::DeadlinePassed, fmt::format("deadline of {} passed", in_seconds(limit)));
    }
  }

  std::size_t self_;
  TcpLoop loop_;
  std::map<std::size_t, PeerLinks> links_;  // by worker
  PeerTraffic traffic_;
};

ConnectedPeers::ConnectedPeers(std::size_t self, const std::vector<Endpoint>& workers, std::uint32_t channel,
                               const TcpOptions& options, TcpListener listener)
    : impl_(std::make_unique<Impl>(self, workers, channel, options, std::move(listener)))
{
}

ConnectedPeers::~ConnectedPeers() = default;

std::size_t ConnectedPeers::self() const
{
  return impl_->self();
}

void ConnectedPeers::exchange(std::span<PeerTransfer> transfers, Seconds limit)
{
  impl_->exchange(transfers, limit);
}

PeerTraffic ConnectedPeers::traffic() const
{
  return impl_->traffic();
}

}  // namespace isobar::exec
