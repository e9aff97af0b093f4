#pragma once

#include "core/program/collective.hpp"
#include "core/shared_link.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace isobar {

/// What lies between two endpoints, for StepGraph: seconds and bytes per second.
struct GraphPath {
  double latency = 0;
  double bandwidth = 0;
  std::vector<SharedLink> links = {};
};

/// Steps as a graph of their computations, messages and collectives, which it plays in the order of time.
///
/// For the plan checker, independent of core/program/player.hpp, so that an error in one shows against the other. What
/// is under way shares links by max-min fairness, with weights of 1 / latency (docs/costs.md). The names of links must
/// outlive the graph. O(flows that share full links with each other) for each time at which one of them begins or ends.
class StepGraph {
 public:
  using Paths = std::function<GraphPath(std::size_t from, std::size_t to)>;

  /// `paths` is between the endpoints of messages and collectives; none: they take no time.
  explicit StepGraph(Paths paths) : paths_(std::move(paths)) {}

  /// Adds a pace: its computations take `factor` times as long while something that slows it is under way. Beyond
  /// `at_once` of them, all share `at_once` cores in equal parts.
  std::size_t add_pace(double factor, double at_once = std::numeric_limits<double>::infinity());
  /// Adds a computation that takes `seconds`, at a pace, and slows another pace. @returns its number.
  std::size_t add_computation(double seconds, std::optional<std::size_t> pace = {},
                              std::optional<std::size_t> slows = {});
  /// Adds a stream, whose messages flow one after the other in the order in which they are added.
  std::size_t add_stream(std::size_t from, std::size_t to);
  /// Adds a message. It is ready when what it waits for has ended and the message before it is ready.
  std::size_t add_message(std::size_t stream, double bytes);
  /// Adds a way of copies, which start after its latency and `delay` seconds.
  std::size_t add_way(const GraphPath& path, double delay = 0);
  /// Adds a copy over a way.
  std::size_t add_copy(std::size_t way, double bytes);
  /// Adds endpoints that meet for collectives, each of which begins with `start` seconds, and which slow these paces.
  std::size_t add_group(std::vector<std::size_t> ends, double start, std::vector<std::size_t> slows = {});
  /// Adds rounds that collectives play.
  std::size_t add_rounds(std::vector<Round> rounds);
  /// Adds a collective of these rounds, which follows the one that was added to the group before.
  std::size_t add_collective(std::size_t group, std::size_t rounds);
  /// Lets one wait for the end of another.
  void add_wait(std::size_t waiter, std::size_t awaited);
  /// What is added from now on belongs to the next step.
  void begin_step() { first_of_step_.push_back(nodes_.size()); }

  /// When the last of each step has ended. May be called once. @throws std::logic_error if some wait for each other.
  std::vector<double> play();

 private:
  enum class Kind : std::uint8_t { Computation, Message, Copy, Collective };
  struct Node {
    Kind kind = Kind::Computation;
    bool is_released = false;
    std::uint32_t waits = 0;
    std::uint32_t detail = 0;  // stream, way, group, or index of its pace and 1
    std::uint32_t rounds = 0;  // of a collective; of a computation the pace that it slows and 1
    double size = 0;           // seconds or bytes
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
    std::vector<std::size_t> ends;
    double start = 0;
    std::vector<std::size_t> slows;
    std::optional<std::size_t> last;  // collective that was added
    std::size_t next_round = 0;       // of the one under way
    std::size_t flows_left = 0;
  };
  /// A computation under way at a pace.
  struct Paced {
    std::size_t node = 0;
    double left = 0;  // seconds at full speed
    double since = 0;
    std::uint64_t version = 0;
  };
  struct Pace {
    double factor = 1;
    double at_once = 0;
    std::size_t slowed_by = 0;
    std::vector<Paced> under_way = {};

    double rate() const
    {
      const double part = std::min(1.0, at_once / static_cast<double>(under_way.size()));
      return slowed_by > 0 ? part / factor : part;
    }
  };
  struct Part {
    std::size_t link = 0;
    double passes = 1;
  };
  struct Path {
    double latency = 0;
    double bandwidth = 0;
    double weight = 1;
    std::vector<Part> parts;
  };
  struct Data {
    std::size_t node = 0;
    const Path* path = nullptr;
    double left = 0;
    double rate = 0;
    double since = 0;
    std::uint64_t version = 0;
    std::uint64_t visit = 0;
    bool flows = false;
  };
  struct LinkState {
    double bandwidth = 0;
    bool is_fat_pipe = false;
    bool binds = false;  // its data take bandwidth from each other
    double wanted = 0;   // by all data under way
    double free = 0;
    double weight = 0;
    std::uint64_t visit = 0;
    std::vector<std::size_t> data;
  };
  enum class EventKind : std::uint8_t { Ends, PacedEnds, DataBegin, DataEnd };
  struct Event {
    double time = 0;
    std::uint64_t number = 0;  // of equal times, in the order of their making
    std::uint64_t version = 0;
    std::uint32_t subject = 0;  // node or data
    EventKind kind = EventKind::Ends;

    bool operator>(const Event& other) const { return time != other.time ? time > other.time : number > other.number; }
  };

  const Path& path(std::size_t from, std::size_t to);
  Path path_over(const GraphPath& found);
  void push(double time, EventKind kind, std::size_t subject, std::uint64_t version = 0);
  void handle(const Event& event);
  void list_waiters();
  void release(std::size_t node);
  void end(std::size_t node);
  void begin_computation(std::size_t node);
  bool end_paced(const Event& event);
  void slow(std::size_t pace, bool begins);
  void change_rate(Pace& pace, double before);
  void begin_message(Stream& stream);
  void begin_collective(std::size_t node);
  void begin_round(std::size_t node, double time);
  void add_data(std::size_t node, const Path& path, double time, double bytes);
  void begin_data(std::size_t number);
  void end_data(std::size_t number);
  void data_ended(std::size_t node);
  static bool does_bind(const LinkState& link, const std::vector<Data>& data);
  void note_change(LinkState& link);
  void set_rates();
  void collect_sharing(std::size_t data);
  void share();
  void set_rate(std::size_t number, double rate);

  Paths paths_;
  std::vector<Node> nodes_;
  std::vector<std::size_t> first_of_step_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> waits_;  // awaited, waiter
  std::vector<std::uint32_t> waiters_;                          // of all nodes, one after the other
  std::vector<std::uint32_t> first_waiter_;                     // of each node, and their number
  std::vector<double> step_ends_;
  std::vector<Stream> streams_;
  std::vector<Group> groups_;
  std::vector<std::vector<Round>> rounds_;
  std::vector<Pace> paces_;
  std::unordered_map<std::uint64_t, Path> known_;
  std::deque<Path> ways_;  // of copies, each with its delay
  std::unordered_map<std::string_view, std::size_t> number_of_link_;
  std::vector<LinkState> links_;
  std::vector<Event> events_;  // a heap
  std::vector<Data> data_;
  std::vector<std::size_t> unused_;        // of data
  std::vector<std::size_t> changed_;       // data whose rates may change now
  std::vector<std::size_t> sharing_;       // data that share links, directly or by others
  std::vector<std::size_t> shared_links_;  // their links
  std::uint64_t visit_ = 0;
  std::uint64_t versions_ = 0;
  std::uint64_t pushed_ = 0;
  std::size_t ended_ = 0;
  double now_ = 0;
};

}  // namespace isobar
