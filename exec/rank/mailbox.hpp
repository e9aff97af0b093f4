#pragma once

#include "core/errors.hpp"
#include "core/program/program.hpp"
#include "exec/device/message.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace isobar::exec {

/// Messages that one lane of a rank leaves for another, or the compute lane for itself. Thread-safe.
class Mailbox {
 public:
  /// What a message carries, the stage of this rank that made or reads it, and the rank that it leaves for. Lanes that
  /// send copies to several ranks may be a step apart, so each has messages of its own.
  struct Address {
    Payload payload = Payload::Activation;
    std::uint32_t stage = 0;
    std::uint64_t microbatch = 0;
    std::size_t reader = 0;  ///< of a message that leaves

    friend auto operator<=>(const Address&, const Address&) = default;
  };

  void put(const Address& address, Message message)
  {
    const std::lock_guard lock(mutex_);
    messages_.emplace(address, std::move(message));
  }

  /// Takes the oldest message of an address, which must have arrived. Does not wait.
  Message take(const Address& address)
  {
    const std::lock_guard lock(mutex_);
    const auto first = messages_.lower_bound(address);
    ensure(first != messages_.end() && first->first == address, "an instruction finds the message that it waited for");
    Message message = std::move(first->second);
    messages_.erase(first);
    return message;
  }

 private:
  std::mutex mutex_;
  std::multimap<Address, Message> messages_;  // those of one address in the order of steps
};

}  // namespace isobar::exec
