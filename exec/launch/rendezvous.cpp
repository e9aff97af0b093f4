#include "exec/launch/rendezvous.hpp"

#include "core/base/clock.hpp"
#include "core/errors.hpp"
#include "exec/launch/rendezvous_master.hpp"
#include "exec/launch/rendezvous_messages.hpp"
#include "exec/links/network_options.hpp"
#include "exec/links/text_message.hpp"
#include "exec/net/address.hpp"
#include "exec/net/connection_manager.hpp"

#include <fmt/format.h>

#include <map>
#include <random>
#include <utility>

namespace isobar::exec {

namespace rendezvous {
namespace {

std::string random_identifier()
{
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// The part of all ranks except rank 0.
class Member {
 public:
  explicit Member(const RendezvousOptions& options) : options_(options), deadline_(deadline_in(options.deadline)) {}

  Meeting run(const RankFacts& facts)
  {
    std::string text;
    do {
      connect();
      text = first_text();
    } while (text.empty());
    if (text != accepted) {
      decision_from_json(text).throw_if_refused();
      throw EnvironmentError("rank 0 sent a malformed decision: a run without this rank");
    }
    TcpLink& up = *links_.at(Way::Up);
    TcpListener listener(
        {.host = options_.bind.empty() ? address_ : bind_address_of(options_.bind, address_), .port = 0});
    send_text(up, text_of(endpoint_of(listener)), patience);
    send_text(up, facts_to_json(facts), patience);
    // Rank 0 may have begun to wait only now, and then waits for as long again.
    const auto end = deadline_in(options_.deadline + grace + patience);
    while ((text = receive_text(*links_.at(Way::Down), time_until(end))) == clock_question) {
      send_text(up, fmt::format("{:.6f}", wall_clock()), patience);
    }
    const Decision decision = decision_from_json(text);
    decision.throw_if_refused();
    if (decision.device_of_rank.size() != options_.ranks || decision.endpoints.size() != options_.ranks) {
      throw EnvironmentError("rank 0 sent a malformed decision: not as many endpoints as ranks");
    }
    return {.device = decision.device_of_rank[options_.rank],
            .endpoints = decision.endpoints,
            .listener = std::move(listener),
            .summary = ""};
  }

 private:
  /// Where the others reach this rank: if it listens on all interfaces, at the address from which it reaches rank 0.
  Endpoint endpoint_of(const TcpListener& listener) const
  {
    const std::string host = local_address(listener.descriptor());
    const bool all_interfaces = host == "0.0.0.0" || host == "::";
    return {all_interfaces ? address_ : host, listener.port()};
  }

  /// `accepted`, or a decision against a run for which this rank came too late. "" when another process has taken its
  /// place meanwhile, and rank 0 has closed the connection.
  std::string first_text()
  {
    try {
      return receive_text(*links_.at(Way::Down), time_until(deadline_));
    } catch (const EnvironmentError&) {
      if (Clock::now() >= deadline_) throw;
      return "";
    }
  }

  /// Connects both links, and closes those of an earlier attempt.
  void connect()
  {
    links_.clear();
    ConnectionManager connection_manager(options_.secret, options_.tls);
    std::map<Way, std::size_t> attempts;
    std::string rejection;
    for (const Way way : ways) {
      const auto connected = [this, way](const Purpose&, Connection connection) {
        address_ = local_address(connection.socket.number());
        links_[way] = link_over(std::move(connection), way, options_.rank, options_.rank);
      };
      const auto rejected = [&rejection](const std::string& reason) { rejection = reason; };
      const std::string purpose = role_of(options_, options_.rank, way) + std::string(process_mark) + process_;
      attempts[way] = connection_manager.connect(options_.master, purpose_of(purpose), connected, rejected);
    }
    while (links_.size() < ways.size()) {
      const bool in_time = connection_manager.work(deadline_);
      if (!rejection.empty()) {
        throw InputError(fmt::format("rank {}: rejected by rank 0 at {}: {}", options_.rank, text_of(options_.master),
                                     shown(rejection, 128)));
      }
      if (!in_time) {
        const std::size_t attempt = attempts.at(links_.contains(Way::Up) ? Way::Down : Way::Up);
        throw EnvironmentError(fmt::format("rank {}: rank 0 does not answer at {} within {} (twice --deadline): {}",
                                           options_.rank, text_of(options_.master), in_seconds(options_.deadline),
                                           connection_manager.trouble(attempt)));
      }
    }
  }

  RendezvousOptions options_;
  Clock::time_point deadline_;
  std::string process_ = random_identifier();
  std::map<Way, std::unique_ptr<TcpLink>> links_;
  std::string address_;  ///< from which this rank reaches rank 0
};

}  // namespace
}  // namespace rendezvous

Meeting meet(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight)
{
  ensure(options.rank < options.ranks, "the rank of a run is below its number of ranks");
  if (options.rank == 0) return rendezvous::meet_as_master(options, facts, preflight);
  return rendezvous::Member(options).run(facts);
}

}  // namespace isobar::exec
