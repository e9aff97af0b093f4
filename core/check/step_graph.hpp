#pragma once

#include "core/program/collective.hpp"
#include "core/shared_link.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar {

/// What lies between two endpoints, for StepGraph: seconds and bytes per second.
struct GraphPath {
  double latency = 0;
  double bandwidth = 0;
  std::vector<SharedLink> links = {};
};

/// A step as a graph of its computations, messages and collectives, which it plays in the order of time.
///
/// For the plan checker, independent of core/program/player.hpp, so that an error in one shows against the other. What
/// is under way shares links by max-min fairness, with weights of 1 / latency (docs/costs.md). The names of links must
/// outlive the graph. O(flows under way x links) for each time at which a flow begins or ends.
class StepGraph {
 public:
  using Paths = std::function<GraphPath(std::size_t from, std::size_t to)>;

  /// `paths` is between the endpoints of messages and collectives; none: they take no time.
  explicit StepGraph(Paths paths) : paths_(std::move(paths)) {}

  /// Adds a computation that takes `seconds`. @returns its number.
  std::size_t add_computation(double seconds);
  /// Adds a stream, whose messages flow one after the other in the order in which they are added.
  std::size_t add_stream(std::size_t from, std::size_t to);
  /// Adds a message. It is ready when what it waits for has ended and the message before it is ready.
  std::size_t add_message(std::size_t stream, double bytes);
  /// Adds a collective of these rounds among endpoints, which begins with `start` seconds.
  std::size_t add_collective(std::vector<Round> rounds, std::vector<std::size_t> ends, double start);
  /// Lets one wait for the end of another.
  void add_wait(std::size_t waiter, std::size_t awaited);

  /// When the last of all has ended. May be called once. @throws std::logic_error if some wait for each other.
  double play();

 private:
  enum class Kind : std::uint8_t { Computation, Message, Collective };
  struct Node {
    Kind kind = Kind::Computation;
    std::size_t waits = 0;
    std::vector<std::size_t> waiters;
    double size = 0;         // seconds or bytes
    std::size_t detail = 0;  // stream or group
  };
  struct Stream {
    std::size_t from = 0;
    std::size_t to = 0;
    std::vector<std::size_t> messages;
    std::vector<double> ready;  // of the first ones
    std::size_t next = 0;       // that arrives
    bool is_busy = false;       // a message is due or arriving
    double arrived = 0;
  };
  struct Group {
    std::vector<Round> rounds;
    std::vector<std::size_t> ends;
    double start = 0;
    std::size_t next_round = 0;
    std::size_t flows_left = 0;
  };
  struct Part {
    std::size_t link = 0;
    double passes = 1;
  };
  struct Path {
    double latency = 0;
    double bandwidth = 0;
    std::vector<Part> parts;
  };
  struct Data {
    std::size_t node = 0;
    const Path* path = nullptr;
    double left = 0;
    double rate = 0;
  };
  struct LinkState {
    double bandwidth = 0;
    bool is_fat_pipe = false;
    double wanted = 0;  // by all data under way
    double free = 0;
    double weight = 0;
    double least_weight = 0;
    double filling_weight = 0;
    bool binds = false;
  };
  struct Event {
    double time = 0;
    std::uint64_t number = 0;  // of equal times, in the order of their making
    std::size_t node = 0;
    const Path* path = nullptr;  // of data that begin to flow; null: a computation ends
    double bytes = 0;

    bool operator>(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };

  const Path& path(std::size_t from, std::size_t to);
  void push(double time, std::size_t node, const Path* path, double bytes);
  void release(std::size_t node);
  void end(std::size_t node);
  void begin_message(Stream& stream);
  void begin_round(std::size_t node);
  void data_ended(std::size_t node);
  void set_rates();
  static double weight_of(const Path& path);

  Paths paths_;
  std::vector<Node> nodes_;
  std::vector<Stream> streams_;
  std::vector<Group> groups_;
  std::unordered_map<std::uint64_t, Path> known_;
  std::unordered_map<std::string_view, std::size_t> number_of_link_;
  std::vector<LinkState> links_;
  std::vector<Event> events_;  // a heap
  std::vector<Data> data_;     // under way
  std::uint64_t pushed_ = 0;
  std::size_t ended_ = 0;
  double now_ = 0;
};

}  // namespace isobar
