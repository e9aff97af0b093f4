#include "exec/launch/rendezvous_master.hpp"

#include "core/base/clock.hpp"
#include "core/errors.hpp"
#include "exec/launch/rendezvous_messages.hpp"
#include "exec/links/network_options.hpp"
#include "exec/links/text_message.hpp"
#include "exec/net/address.hpp"
#include "exec/net/connection_manager.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace isobar::exec::rendezvous {

namespace {

constexpr int round_trips = 5;

class Master {
 public:
  Master(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight,
         Clock::time_point deadline, TcpListener listener);

  Meeting run();

 private:
  /// Another rank and its links.
  struct Member {
    std::string process;  ///< identifier; "" before it has connected
    std::map<Way, std::unique_ptr<TcpLink>> links;
    std::string address;  ///< from which it connects
    Endpoint endpoint;    ///< where it listens
    bool is_connected() const { return links.size() == ways.size(); }
  };

  struct Introduction {
    std::string role;
    std::string process;
  };
  static Introduction introduction_of(const Purpose& purpose);
  /// Ignores a member that is gone: a wait for its messages notices that.
  static void send(const Member& member, std::string_view text);
  /// "" if the connection is accepted.
  std::string reason_to_reject(const Purpose& purpose);
  void keep(const Purpose& purpose, Connection connection);
  bool all_are_connected() const;
  void drop_closed();
  void wait_for_all();
  PresentRank question(std::size_t rank);
  Decision decide();

  RendezvousOptions options_;
  const Preflight* preflight_;
  Clock::time_point deadline_;
  TcpListener own_;
  ConnectionManager connection_manager_;
  std::map<std::string, std::pair<std::size_t, Way>> expected_;  ///< by role
  std::vector<Member> members_;                                  ///< by rank; the first is empty
  std::set<std::string> faults_;                                 ///< of rejected connections
  std::vector<PresentRank> present_;
};

/// What rank 0 listens on.
std::string host_to_listen_on(const RendezvousOptions& options)
{
  const std::string& master = options.master.host;
  if (!options.bind.empty()) return bind_address_of(options.bind, master);
  const bool differs_elsewhere = is_host_name(master) && !is_loopback(master) && is_loopback(address_of_host(master));
  return differs_elsewhere ? "0.0.0.0" : master;
}

/// "; give all ranks another --master", or "".
std::string appended(const std::string& advice)
{
  return advice.empty() ? "" : "; " + advice;
}

/// Opens rank 0's port at the master's address.
TcpListener listener_of_master(const RendezvousOptions& options, Clock::time_point deadline)
{
  if (options.bind.empty() && !resolves_by(deadline, options.master.host)) {
    throw EnvironmentError(fmt::format("rank 0: the name {} does not resolve within {} (twice --deadline){}",
                                       shown(options.master.host), in_seconds(options.deadline),
                                       appended(options.master_advice)));
  }
  try {
    return TcpListener({.host = host_to_listen_on(options), .port = options.master.port});
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(error.what() + appended(options.master_advice));
  }
}

Master::Master(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight,
               Clock::time_point deadline, TcpListener listener)
    : options_(options),
      preflight_(&preflight),
      deadline_(deadline),
      own_({.host = host_to_listen_on(options), .port = 0}),
      connection_manager_(options.secret, options.tls),
      members_(options.ranks)
{
  present_.push_back({.facts = facts, .address = options.master.host, .clock = Seconds(0), .round_trip = Seconds(0)});
  for (std::size_t rank = 1; rank < options.ranks; ++rank) {
    for (const Way way : ways) expected_[role_of(options, rank, way)] = {rank, way};
  }
  connection_manager_.listen(
      std::move(listener), [this](const Purpose& purpose) { return reason_to_reject(purpose); },
      [this](const Purpose& purpose, Connection connection) { keep(purpose, std::move(connection)); });
}

Master::Introduction Master::introduction_of(const Purpose& purpose)
{
  const std::string text = text_of(purpose);
  const auto end = std::min(text.find(process_mark), text.size());
  return {text.substr(0, end), text.substr(end)};
}

std::string Master::reason_to_reject(const Purpose& purpose)
{
  const auto [role, process] = introduction_of(purpose);
  const auto found = expected_.find(role);
  if (found == expected_.end()) {
    const auto expected = in_quotes(role_of(options_, 1, Way::Up));
    faults_.insert(
        fmt::format("a process connected as {}; this run expects connections such as {}", in_quotes(role), expected));
    return fmt::format("it expects {}", expected);
  }
  const std::size_t rank = found->second.first;
  drop_closed();
  const Member& member = members_[rank];
  if (member.process.empty() || member.process == process) return "";
  faults_.insert(fmt::format("two processes claim to be rank {}; give each its own rank", rank));
  return fmt::format("rank {} is already connected, from {}", rank, member.address);
}

void Master::send(const Member& member, std::string_view text)
{
  const auto down = member.links.find(Way::Down);
  if (down == member.links.end()) return;
  try {
    send_text(*down->second, text, patience);
  } catch (const EnvironmentError&) {
    return;
  }
}

void Master::keep(const Purpose& purpose, Connection connection)
{
  const Introduction introduction = introduction_of(purpose);
  const auto [rank, way] = expected_.at(introduction.role);
  members_[rank].process = introduction.process;
  members_[rank].address = peer_address(connection.socket.number());
  members_[rank].links[way] = link_over(std::move(connection), way, rank, 0);
  if (members_[rank].is_connected()) send(members_[rank], accepted);
}

bool Master::all_are_connected() const
{
  return std::all_of(members_.begin() + 1, members_.end(), [](const Member& member) { return member.is_connected(); });
}

/// Forgets links that their ranks have closed: a rank that died may be started again.
void Master::drop_closed()
{
  for (auto& member : members_) {
    std::erase_if(member.links, [](const auto& link) { return link.second->is_closed(); });
    if (member.links.empty()) member.process.clear();
  }
}

void Master::wait_for_all()
{
  while (!all_are_connected() && connection_manager_.work(deadline_)) {
    if (!faults_.empty()) deadline_ = std::min(deadline_, deadline_in(grace));
    drop_closed();
  }
}

/// Receives a rank's endpoint and facts, and compares its clock.
PresentRank Master::question(std::size_t rank)
{
  Member& member = members_[rank];
  TcpLink& up = *member.links.at(Way::Up);
  PresentRank present;
  present.address = member.address;
  member.endpoint = endpoint_from_text(fmt::format("rank {}", rank), receive_text(up, patience));
  present.facts = facts_from_json(receive_text(up, patience));
  present.round_trip = patience;
  for (int i = 0; i < round_trips; ++i) {
    const auto begin = Clock::now();
    const double asked = wall_clock();
    send_text(*member.links.at(Way::Down), clock_question, patience);
    const double answer = std::strtod(receive_text(up, patience).c_str(), nullptr);
    const Seconds round_trip = time_since(begin);
    if (round_trip >= present.round_trip) continue;
    present.round_trip = round_trip;
    present.clock = Seconds(answer - asked) - round_trip / 2;
  }
  return present;
}

Decision Master::decide()
{
  wait_for_all();
  Decision decision;
  decision.reasons.assign(faults_.begin(), faults_.end());
  if (!decision.reasons.empty()) return decision;
  std::string missing;
  for (std::size_t rank = 1; rank < members_.size(); ++rank) {
    if (!members_[rank].is_connected()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
  }
  decision.is_the_machines_fault = true;
  if (!missing.empty()) {
    decision.reasons.push_back(
        fmt::format("of {} ranks these have not connected to {} within {} (twice --deadline): {}{}{}", members_.size(),
                    text_of(options_.master), in_seconds(options_.deadline), missing,
                    connection_manager_.unauthenticated(), appended(options_.missing_advice)));
    return decision;
  }
  try {
    for (std::size_t rank = 1; rank < members_.size(); ++rank) present_.push_back(question(rank));
  } catch (const EnvironmentError& error) {
    decision.reasons.emplace_back(error.what());
    return decision;
  }
  decision.is_the_machines_fault = false;
  DeviceAssignment assignment = examine_ranks(*preflight_, present_);
  decision.reasons = std::move(assignment.faults);
  if (!decision.reasons.empty()) return decision;
  if (auto fault = different_steps(present_); !fault.empty()) {
    decision.is_the_machines_fault = true;
    decision.reasons.push_back(std::move(fault));
    return decision;
  }
  decision.device_of_rank = std::move(assignment.device_of_rank);
  decision.endpoints.resize(members_.size());
  decision.endpoints[decision.device_of_rank.front()] = {options_.master.host, own_.port()};
  for (std::size_t rank = 1; rank < members_.size(); ++rank) {
    decision.endpoints[decision.device_of_rank[rank]] = members_[rank].endpoint;
  }
  return decision;
}

Meeting Master::run()
{
  const Decision decision = decide();
  for (const auto& member : members_) send(member, decision_to_json(decision));
  decision.throw_if_refused();
  return {.device = decision.device_of_rank.front(),
          .endpoints = decision.endpoints,
          .listener = std::move(own_),
          .summary = assignment_text(*preflight_, present_, decision.device_of_rank)};
}

}  // namespace

Meeting meet_as_master(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight)
{
  const auto deadline = deadline_in(options.deadline);
  return Master(options, facts, preflight, deadline, listener_of_master(options, deadline)).run();
}

}  // namespace isobar::exec::rendezvous
