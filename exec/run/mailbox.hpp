#pragma once

#include "exec/model/message.hpp"

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>

/// Messages and decisions that the lanes of a rank pass to each other.
namespace isobar::exec {

/// Messages that one lane leaves for another, by micro-batch. Thread-safe.
class Mailbox {
 public:
  void put(std::uint64_t microbatch, Message message);
  /// Takes the oldest message of a micro-batch, which must have arrived. Does not wait.
  Message take(std::uint64_t microbatch);

 private:
  std::mutex mutex_;
  std::multimap<std::uint64_t, Message> messages_;  // those of one micro-batch in the order of steps
};

/// The first stage's decisions by step, on which a rank's lanes wait. Keeps those of the last few steps. Thread-safe.
class StepControlBoard {
 public:
  void post(std::uint64_t step, StepControl control);
  bool knows(std::uint64_t step);
  /// Waits for a step's control. @throws a Cancelled failure.
  StepControl await(std::uint64_t step);
  /// Forgets all steps.
  void clear();
  /// Ends all waits.
  void cancel() noexcept;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, StepControl> controls_;
  bool cancelled_ = false;
};

}  // namespace isobar::exec
