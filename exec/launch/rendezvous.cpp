#include "exec/launch/rendezvous.hpp"

#include "core/base/clock.hpp"
#include "core/base/document.hpp"
#include "core/errors.hpp"
#include "exec/net/address.hpp"
#include "exec/net/connection_manager.hpp"
#include "exec/net/network_options.hpp"
#include "exec/net/text_message.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string_view>
#include <utility>

namespace isobar::exec {

namespace {

using Json = nlohmann::ordered_json;

/// Of the messages below; ranks that speak another one are turned away.
constexpr int protocol = 1;
constexpr int round_trips = 5;
/// How long the others may still come once something speaks against the run, so that all hear why.
constexpr Seconds grace{5};
/// For a message of a rank that is there.
constexpr Seconds patience{10};
/// What rank 0 says to a rank that it knows from now on. One that hears nothing was dropped, and calls again.
constexpr auto greeting = "welcome";
constexpr auto clock_question = "clock";

/// A rank's two one-way links with rank 0, which is one end of each.
enum class Way : std::uint32_t { Up, Down };
constexpr std::array ways = {Way::Up, Way::Down};

/// Between what a call is for and a word that is one process's alone, so that no two share a rank's links.
constexpr std::string_view process_mark = ", process ";

std::string word_of_this_process()
{
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

/// What a call is for, such as "isobar 1: rank 1 of 3, up".
std::string words_of_call(const RendezvousOptions& options, std::size_t rank, Way way)
{
  return fmt::format("isobar {}: rank {} of {}{}, {}", protocol, rank, options.ranks, options.tls ? " with TLS" : "",
                     way == Way::Up ? "up" : "down");
}

std::unique_ptr<TcpLink> link_over(Flow flow, Way way, std::size_t rank, std::size_t self)
{
  const auto channel = static_cast<std::uint32_t>(way);
  const LinkName name = way == Way::Up ? LinkName{rank, 0, channel} : LinkName{0, rank, channel};
  std::vector<Flow> flows;
  flows.push_back(std::move(flow));
  return std::make_unique<TcpLink>(name, self, "rendezvous", std::move(flows));
}

double wall_clock()
{
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// What rank 0 tells the others in the end.
struct Decision {
  std::vector<std::string> reasons;  ///< against the run; none: it begins
  bool is_the_machines_fault = false;
  std::vector<std::size_t> device_of_rank;
  std::vector<Endpoint> endpoints;  ///< by device

  void throw_if_refused() const
  {
    if (reasons.empty()) return;
    if (!is_the_machines_fault) throw InputError(reasons);
    throw EnvironmentError(reasons.front());
  }
};

std::string decision_to_json(const Decision& decision)
{
  Json endpoints = Json::array();
  for (const auto& endpoint : decision.endpoints)
    endpoints.push_back({{"host", endpoint.host}, {"port", endpoint.port}});
  const Json json = {{"reasons", decision.reasons},
                     {"is_the_machines_fault", decision.is_the_machines_fault},
                     {"device_of_rank", decision.device_of_rank},
                     {"endpoints", std::move(endpoints)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Decision decision_from_json(const std::string& text)
{
  try {
    const Json json = Json::parse(text);
    Decision decision = {.reasons = json.at("reasons"),
                         .is_the_machines_fault = json.at("is_the_machines_fault"),
                         .device_of_rank = json.at("device_of_rank"),
                         .endpoints = {}};
    for (const auto& endpoint : json.at("endpoints")) {
      decision.endpoints.push_back({endpoint.at("host"), endpoint.at("port")});
    }
    return decision;
  } catch (const Json::exception& error) {
    throw EnvironmentError(fmt::format("rank 0 says what makes no sense: {}", shown(error.what(), 200)));
  }
}

/// Rank 0's part: it waits for the others, asks them, and tells them what comes of it.
class Host {
 public:
  Host(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight);

  Meeting run();

 private:
  struct Visitor {
    std::string process;  ///< its word; "" before it has called
    std::map<Way, std::unique_ptr<TcpLink>> links;
    std::string address;  ///< from which it calls
    Endpoint endpoint;    ///< where it listens
    bool is_here() const { return links.size() == ways.size(); }
  };

  struct CallSign {
    std::string words;    ///< what the call is for
    std::string process;  ///< whose it is
  };
  static CallSign call_sign_of(const Purpose& purpose);
  /// A visitor that is gone is missed by whoever waits for it.
  static void tell(const Visitor& visitor, const std::string& text);
  std::string objection_to(const Purpose& purpose);
  void welcome(const Purpose& purpose, Flow flow);
  bool all_are_here() const;
  void forget_who_is_gone();
  void wait_for_all();
  PresentRank question(std::size_t rank);
  Decision decide();

  RendezvousOptions options_;
  const Preflight* preflight_;
  Clock::time_point deadline_;
  TcpListener own_;
  ConnectionManager board_;
  std::map<std::string, std::pair<std::size_t, Way>> expected_;  ///< by the words of the call
  std::vector<Visitor> guests_;                                  ///< by rank; the first is empty
  std::set<std::string> faults_;                                 ///< of callers that were turned away
  std::vector<PresentRank> present_;
};

/// What rank 0 listens on.
std::string host_to_listen_on(const RendezvousOptions& options)
{
  const std::string& master = options.master.host;
  if (!options.bind.empty()) return bind_address_of(options.bind, master);
  const bool means_other_machines_elsewhere =
      is_host_name(master) && !is_loopback(master) && is_loopback(address_of_host(master));
  return means_other_machines_elsewhere ? "0.0.0.0" : master;
}

Host::Host(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight)
    : options_(options),
      preflight_(&preflight),
      deadline_(deadline_in(options.deadline)),
      own_({.host = host_to_listen_on(options), .port = 0}),
      board_(options.secret, options.tls),
      guests_(options.ranks)
{
  present_.push_back({.facts = facts, .address = options.master.host, .clock = Seconds(0), .round_trip = Seconds(0)});
  for (std::size_t rank = 1; rank < options.ranks; ++rank) {
    for (const Way way : ways) expected_[words_of_call(options, rank, way)] = {rank, way};
  }
  TcpListener listener({.host = host_to_listen_on(options), .port = options.master.port});
  board_.listen(
      std::move(listener), [this](const Purpose& purpose) { return objection_to(purpose); },
      [this](const Purpose& purpose, Flow flow) { welcome(purpose, std::move(flow)); });
}

Host::CallSign Host::call_sign_of(const Purpose& purpose)
{
  const std::string text = text_of(purpose);
  const auto end = std::min(text.find(process_mark), text.size());
  return {text.substr(0, end), text.substr(end)};
}

std::string Host::objection_to(const Purpose& purpose)
{
  const auto [words, process] = call_sign_of(purpose);
  const auto found = expected_.find(words);
  if (found == expected_.end()) {
    faults_.insert(fmt::format("somebody called as {}; this run awaits calls such as {}", in_quotes(words),
                               in_quotes(words_of_call(options_, 1, Way::Up))));
    return fmt::format("it awaits {}", in_quotes(words_of_call(options_, 1, Way::Up)));
  }
  const std::size_t rank = found->second.first;
  forget_who_is_gone();
  const Visitor& visitor = guests_[rank];
  if (visitor.process.empty() || visitor.process == process) return "";
  faults_.insert(fmt::format("two processes say that they are rank {}; give each its own", rank));
  return fmt::format("rank {} is there already, from {}", rank, visitor.address);
}

void Host::tell(const Visitor& visitor, const std::string& text)
{
  const auto down = visitor.links.find(Way::Down);
  if (down == visitor.links.end()) return;
  try {
    send_text(*down->second, text, patience);
  } catch (const EnvironmentError&) {
    return;
  }
}

void Host::welcome(const Purpose& purpose, Flow flow)
{
  const CallSign sign = call_sign_of(purpose);
  const auto [rank, way] = expected_.at(sign.words);
  guests_[rank].process = sign.process;
  guests_[rank].address = peer_address(flow.socket.number());
  guests_[rank].links[way] = link_over(std::move(flow), way, rank, 0);
  if (guests_[rank].is_here()) tell(guests_[rank], greeting);
}

bool Host::all_are_here() const
{
  return std::all_of(guests_.begin() + 1, guests_.end(), [](const Visitor& guest) { return guest.is_here(); });
}

/// A rank that died meanwhile may be started again.
void Host::forget_who_is_gone()
{
  for (auto& guest : guests_) {
    std::erase_if(guest.links, [](const auto& link) { return link.second->is_closed(); });
    if (guest.links.empty()) guest.process.clear();
  }
}

void Host::wait_for_all()
{
  while (!all_are_here() && board_.work(deadline_)) {
    if (!faults_.empty()) deadline_ = std::min(deadline_, deadline_in(grace));
    forget_who_is_gone();
  }
}

/// What a rank is, where it listens, and how its clock goes.
PresentRank Host::question(std::size_t rank)
{
  Visitor& guest = guests_[rank];
  TcpLink& up = *guest.links.at(Way::Up);
  PresentRank present;
  present.address = guest.address;
  guest.endpoint = endpoint_from_text(fmt::format("rank {}", rank), receive_text(up, patience));
  present.facts = facts_from_json(receive_text(up, patience));
  present.round_trip = patience;
  for (int i = 0; i < round_trips; ++i) {
    const auto begin = Clock::now();
    const double asked = wall_clock();
    send_text(*guest.links.at(Way::Down), clock_question, patience);
    const double told = std::strtod(receive_text(up, patience).c_str(), nullptr);
    const Seconds round_trip = time_since(begin);
    if (round_trip >= present.round_trip) continue;
    present.round_trip = round_trip;
    present.clock = Seconds(told - asked) - round_trip / 2;
  }
  return present;
}

Decision Host::decide()
{
  wait_for_all();
  Decision decision;
  decision.reasons.assign(faults_.begin(), faults_.end());
  if (!decision.reasons.empty()) return decision;
  std::string missing;
  for (std::size_t rank = 1; rank < guests_.size(); ++rank) {
    if (!guests_[rank].is_here()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
  }
  decision.is_the_machines_fault = true;
  if (!missing.empty()) {
    decision.reasons.push_back(fmt::format("of {} ranks these have not called {} within {} (twice --deadline): {}{}",
                                           guests_.size(), text_of(options_.master), in_seconds(options_.deadline),
                                           missing, board_.unauthenticated()));
    return decision;
  }
  try {
    for (std::size_t rank = 1; rank < guests_.size(); ++rank) present_.push_back(question(rank));
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
  decision.endpoints.resize(guests_.size());
  decision.endpoints[decision.device_of_rank.front()] = {options_.master.host, own_.port()};
  for (std::size_t rank = 1; rank < guests_.size(); ++rank) {
    decision.endpoints[decision.device_of_rank[rank]] = guests_[rank].endpoint;
  }
  return decision;
}

Meeting Host::run()
{
  const Decision decision = decide();
  for (const auto& guest : guests_) tell(guest, decision_to_json(decision));
  decision.throw_if_refused();
  return {.device = decision.device_of_rank.front(),
          .endpoints = decision.endpoints,
          .listener = std::move(own_),
          .in_words = assignment_in_words(*preflight_, present_, decision.device_of_rank)};
}

/// Everyone else's part.
class Guest {
 public:
  explicit Guest(const RendezvousOptions& options) : options_(options), deadline_(deadline_in(options.deadline)) {}

  Meeting run(const RankFacts& facts)
  {
    std::string text;
    do {
      call();
      text = first_text();
    } while (text.empty());
    if (text != greeting) {
      decision_from_json(text).throw_if_refused();
      throw EnvironmentError("rank 0 says what makes no sense: a run without this rank");
    }
    TcpLink& up = *links_.at(Way::Up);
    TcpListener listener(
        {.host = options_.bind.empty() ? address_ : bind_address_of(options_.bind, address_), .port = 0});
    send_text(up, text_of(endpoint_of(listener)), patience);
    send_text(up, facts_to_json(facts), patience);
    // Rank 0 may have begun to wait only now, and then waits as long.
    const auto end = deadline_in(options_.deadline + grace + patience);
    while ((text = receive_text(*links_.at(Way::Down), time_until(end))) == clock_question) {
      send_text(up, fmt::format("{:.6f}", wall_clock()), patience);
    }
    const Decision decision = decision_from_json(text);
    decision.throw_if_refused();
    if (decision.device_of_rank.size() != options_.ranks || decision.endpoints.size() != options_.ranks) {
      throw EnvironmentError("rank 0 says what makes no sense: not as many endpoints as ranks");
    }
    return {.device = decision.device_of_rank[options_.rank],
            .endpoints = decision.endpoints,
            .listener = std::move(listener),
            .in_words = ""};
  }

 private:
  /// Where the others find it: one that listens on all interfaces, at the address that rank 0 is reached from.
  Endpoint endpoint_of(const TcpListener& listener) const
  {
    const std::string host = local_address(listener.descriptor());
    const bool all_interfaces = host == "0.0.0.0" || host == "::";
    return {all_interfaces ? address_ : host, listener.port()};
  }

  /// The greeting of rank 0, which then knows this rank, or its decision against a run for which this rank came too
  /// late; "" where another one has taken its place meanwhile, and rank 0 has hung up.
  std::string first_text()
  {
    try {
      return receive_text(*links_.at(Way::Down), time_until(deadline_));
    } catch (const EnvironmentError&) {
      if (Clock::now() >= deadline_) throw;
      return "";
    }
  }

  /// Makes both links, anew.
  void call()
  {
    links_.clear();
    ConnectionManager board(options_.secret, options_.tls);
    std::map<Way, std::size_t> calls;
    std::string refusal;
    for (const Way way : ways) {
      const auto connected = [this, way](const Purpose&, Flow flow) {
        address_ = local_address(flow.socket.number());
        links_[way] = link_over(std::move(flow), way, options_.rank, options_.rank);
      };
      const auto turned_away = [&refusal](const std::string& reason) { refusal = reason; };
      const std::string words = words_of_call(options_, options_.rank, way) + std::string(process_mark) + word_;
      calls[way] = board.connect(options_.master, purpose_of(words), connected, turned_away);
    }
    while (links_.size() < ways.size()) {
      const bool goes_on = board.work(deadline_);
      if (!refusal.empty()) {
        throw InputError(fmt::format("rank {}: rank 0 at {} turns it away: {}", options_.rank, text_of(options_.master),
                                     shown(refusal, 128)));
      }
      if (!goes_on) {
        throw EnvironmentError(fmt::format("rank {}: rank 0 does not answer at {} within {} (twice --deadline): {}",
                                           options_.rank, text_of(options_.master), in_seconds(options_.deadline),
                                           board.trouble(calls.at(links_.contains(Way::Up) ? Way::Down : Way::Up))));
      }
    }
  }

  RendezvousOptions options_;
  Clock::time_point deadline_;
  std::string word_ = word_of_this_process();
  std::map<Way, std::unique_ptr<TcpLink>> links_;
  std::string address_;  ///< from which this rank reaches rank 0
};

}  // namespace

Meeting meet(const RendezvousOptions& options, const RankFacts& facts, const Preflight& preflight)
{
  ensure(options.rank < options.ranks, "a run's rank is one of its ranks");
  return options.rank == 0 ? Host(options, facts, preflight).run() : Guest(options).run(facts);
}

}  // namespace isobar::exec
