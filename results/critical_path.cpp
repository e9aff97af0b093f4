#include "results/critical_path.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <deque>

namespace isobar::results {

namespace {

/// Messages of one lane, and whether each was delayed by the one before it or only by its own latency.
class Stream {
 public:
  /// Returns when the next message has arrived.
  double send(double ready, const TransferTimes& transfer)
  {
    const double first_byte = ready + transfer.latency.value;
    queued_.push_back(arrived_ > first_byte);
    arrived_ = std::max(arrived_, first_byte) + transfer.data.value;
    return arrived_;
  }
  bool was_queued(std::uint64_t message) const { return queued_[message]; }

 private:
  double arrived_ = 0;
  std::vector<bool> queued_;
};

struct StagePlay {
  std::uint64_t window = 1;  // most micro-batches in flight
  std::uint64_t forwards = 0;
  std::uint64_t backwards = 0;
  double now = 0;
  double idle_from = 0;  // the wait before the last backward
  double idle_until = 0;
  double idle_for_room = 0;
  std::deque<double> activations;  // arrivals that no forward has used yet
  std::deque<double> gradients;
  std::vector<bool> forward_waited;  // for its activations, by micro-batch
  std::vector<bool> backward_waited;
  std::vector<bool> waited_for_room;
  Stream outputs;
  Stream sent_gradients;  // to the stage before
};

class Play {
 public:
  Play(ChainSchedule schedule, std::uint64_t microbatches, TransferTimes input, const std::vector<StageTimes>& stages,
       MoreInFlight more)
      : microbatches_(microbatches), input_(input), times_(stages), stages_(stages.size())
  {
    ensure(!stages.empty() && microbatches > 0, "a step has stages and micro-batches");
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto held = microbatches_in_flight(schedule, stages.size() - 1 - i, microbatches);
      const bool holds_more = schedule == ChainSchedule::OneForwardOneBackward && i < more.count;
      stages_[i].window = std::min(microbatches, held + (holds_more ? 1 : 0));
    }
    for (std::size_t i = stages.size(); i-- > 0;) awake_.push_back(i);
    while (!awake_.empty()) {
      const std::size_t i = awake_.back();
      awake_.pop_back();
      while (advance(i)) {
      }
    }
  }

  CriticalPath path() const
  {
    CriticalPath path;
    path.stages.resize(times_.size());
    std::size_t last = 0;
    for (std::size_t i = 0; i < times_.size(); ++i) {
      path.stages[i].idle_for_room = Seconds(stages_[i].idle_for_room);
      const Seconds end = Seconds(stages_[i].now) + times_[i].update;
      if (end > path.step_time || i == 0) {
        path.step_time = end;
        last = i;
      }
    }
    path.stages[last].compute += times_[last].update;
    walk_back(path, last);
    return path;
  }

 private:
  enum class Kind { Forward, Backward, Output, Gradient, Input, Begin };
  /// An event belongs to the stage that works, sends the output or receives the gradient.
  struct Event {
    Kind kind = Kind::Begin;
    std::size_t stage = 0;
    std::uint64_t microbatch = 0;
  };

  bool advance(std::size_t i)
  {
    StagePlay& stage = stages_[i];
    if (stage.backwards == microbatches_) return false;
    const bool has_room = stage.forwards - stage.backwards < stage.window;
    return stage.forwards < microbatches_ && has_room ? forward(i, stage) : backward(i, stage);
  }

  bool forward(std::size_t i, StagePlay& stage)
  {
    if (i == 0) {
      const double ready = stage.forwards < 2 ? 0 : forward_ends_[stage.forwards % 2];
      stage.activations.push_back(inputs_.send(ready, input_));
    } else if (stage.activations.empty()) {
      return false;
    }
    const double arrival = stage.activations.front();
    stage.activations.pop_front();
    stage.forward_waited.push_back(arrival > stage.now);
    const bool was_idle = stage.forwards >= stage.window && arrival < stage.idle_until;
    if (was_idle) stage.idle_for_room += stage.idle_until - std::max(stage.idle_from, arrival);
    stage.waited_for_room.push_back(was_idle && stage.idle_until > stage.idle_from);
    stage.now = std::max(stage.now, arrival) + times_[i].forward.value;
    if (i == 0) forward_ends_[stage.forwards % 2] = stage.now;
    ++stage.forwards;
    if (i + 1 < stages_.size()) {
      stages_[i + 1].activations.push_back(stage.outputs.send(stage.now, times_[i].output));
      awake_.push_back(i + 1);
    }
    return true;
  }

  bool backward(std::size_t i, StagePlay& stage)
  {
    double arrival = 0;
    if (i + 1 < stages_.size()) {
      if (stage.gradients.empty()) return false;
      arrival = stage.gradients.front();
      stage.gradients.pop_front();
    }
    stage.backward_waited.push_back(arrival > stage.now);
    stage.idle_from = stage.now;
    stage.idle_until = std::max(stage.now, arrival);
    stage.now = stage.idle_until + times_[i].backward.value;
    ++stage.backwards;
    if (i > 0) {
      stages_[i - 1].gradients.push_back(stage.sent_gradients.send(stage.now, times_[i - 1].gradient));
      awake_.push_back(i - 1);
    }
    return true;
  }

  void walk_back(CriticalPath& path, std::size_t last) const
  {
    Event event = {Kind::Backward, last, microbatches_ - 1};
    while (event.kind != Kind::Begin) event = before(event, path);
  }

  /// Adds the event's time to the path and returns the event that it waited for.
  Event before(const Event& event, CriticalPath& path) const
  {
    const auto& [kind, i, m] = event;
    switch (kind) {
      case Kind::Forward:
        path.stages[i].compute += times_[i].forward;
        if (stages_[i].forward_waited[m]) return i == 0 ? Event{Kind::Input, 0, m} : Event{Kind::Output, i - 1, m};
        if (stages_[i].waited_for_room[m]) ++path.stages[i].waits_for_room;
        return before_forward(i, m);
      case Kind::Backward:
        path.stages[i].compute += times_[i].backward;
        return stages_[i].backward_waited[m] ? Event{Kind::Gradient, i, m} : before_backward(i, m);
      case Kind::Output:
        return before_message(stages_[i].outputs, times_[i].output, path.stages[i].output, event,
                              {Kind::Forward, i, m});
      case Kind::Gradient:
        return before_message(stages_[i + 1].sent_gradients, times_[i].gradient, path.stages[i].gradient, event,
                              {Kind::Backward, i + 1, m});
      case Kind::Input:
        return before_message(inputs_, input_, path.input, event, m < 2 ? Event{} : Event{Kind::Forward, 0, m - 2});
      case Kind::Begin:
        break;
    }
    return {};
  }

  /// The work before it on the same device.
  Event before_forward(std::size_t i, std::uint64_t m) const
  {
    if (m >= stages_[i].window) return {Kind::Backward, i, m - stages_[i].window};
    return m > 0 ? Event{Kind::Forward, i, m - 1} : Event{};
  }
  Event before_backward(std::size_t i, std::uint64_t m) const
  {
    const std::uint64_t forward = m + stages_[i].window - 1;
    return forward < microbatches_ ? Event{Kind::Forward, i, forward} : Event{Kind::Backward, i, m - 1};
  }

  static Event before_message(const Stream& stream, const TransferTimes& transfer, CriticalPath::Lane& lane,
                              const Event& message, const Event& source)
  {
    lane.data += transfer.data;
    if (stream.was_queued(message.microbatch)) return {message.kind, message.stage, message.microbatch - 1};
    lane.latency += transfer.latency;
    return source;
  }

  std::uint64_t microbatches_;
  TransferTimes input_;
  const std::vector<StageTimes>& times_;
  std::vector<StagePlay> stages_;
  std::vector<std::size_t> awake_;
  Stream inputs_;
  double forward_ends_[2] = {};  // of the first stage's last two, by parity
};

}  // namespace

CriticalPath critical_path(ChainSchedule schedule, std::uint64_t microbatches, TransferTimes input,
                           const std::vector<StageTimes>& stages, MoreInFlight more)
{
  return Play(schedule, microbatches, input, stages, more).path();
}

}  // namespace isobar::results
