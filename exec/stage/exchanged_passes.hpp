#pragma once

#include "core/model/workload.hpp"
#include "core/program/shard_role.hpp"
#include "exec/device/message.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/stage/stage_model.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace isobar::exec {

/// The passes of a layer for which devices exchange tensors before and after what the compute lane computes of it.
///
/// Parts of different micro-batches may run at the same time, on threads of their own: those before, by and after the
/// exchanges share no parameters whose gradients they add up. A layer that recomputes its activations keeps its input
/// only, and repeats its forward pass, with its exchanges, in those before its backward pass. On CPUs only.
class ExchangedPasses {
 public:
  /// The devices that meet for an exchange, and the place of this one among them.
  struct Meeting {
    std::size_t devices = 0;
    std::size_t own = 0;
    /// Sends a tensor to each of them, and receives one from each (Transport::exchange).
    std::function<void(const Tensors& outgoing, const Tensors& incoming)> exchange;
  };

  virtual ~ExchangedPasses();
  ExchangedPasses(const ExchangedPasses&) = delete;
  ExchangedPasses& operator=(const ExchangedPasses&) = delete;

  /// Makes the next exchange that a program has for `role` and a micro-batch. The first one of a training's forward
  /// pass waits for the update of the step before. `key.drops`: whether a backward pass follows; else the pass is an
  /// evaluation's. `take`: gives what has come from the neighbouring stage; called once a pass.
  /// @returns what leaves for the neighbouring stage, if the exchange ends a pass
  std::optional<Message> exchange(ShardRole role, const RandomKey& key, const Meeting& meeting,
                                  const std::function<Message()>& take);
  /// Whether a pass ends by an exchange after it; otherwise what `forward` or `backward` returns leaves for the
  /// neighbouring stage.
  virtual bool ends_by_exchange(ShardPass pass) const = 0;
  /// What the compute lane computes between the exchanges. The gradients of all weights are part of the first of two
  /// halves of a backward pass.
  Message forward(std::uint64_t microbatch);
  Message backward(std::uint64_t microbatch);

  /// Waits until the backward passes of all micro-batches have ended.
  void await_gradients();
  /// Says that parameters have been updated by the gradients of a step; those that are gathered afterwards, each time.
  void updated(std::uint64_t step);
  /// Ends the waits.
  void cancel() noexcept;

 protected:
  /// What a micro-batch keeps on its way.
  struct InFlight {
    InFlight() = default;
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;
    virtual ~InFlight() = default;

    RandomKey key;
    bool is_again = false;                       // the forward pass, before a backward pass
    Message arrived;                             // from the neighbouring stage
    std::map<ShardRole, std::size_t> exchanges;  // made so far
  };

  /// `updates`: how often `updated` is called for a step. All arguments must outlive this.
  ExchangedPasses(const Workload& workload, const StageOptions& options, std::string name, std::size_t updates);

  virtual std::unique_ptr<InFlight> begin() const = 0;
  /// Exchange `number` of a role.
  virtual std::optional<Message> exchange(InFlight& own, ShardRole role, std::size_t number,
                                          const Meeting& meeting) = 0;
  virtual Message forward(InFlight& own) = 0;
  virtual Message backward(InFlight& own) = 0;

  const Workload& workload() const { return workload_; }
  bool recomputes() const { return recomputes_; }
  /// Whether the forward pass keeps its graph.
  bool records(const InFlight& own) const { return own.key.drops && (!recomputes_ || own.is_again); }
  /// Runs a part of a pass, with a graph if the pass keeps it.
  void run(const InFlight& own, const std::function<void()>& work) const;
  /// The layer's output, without its graph. Its gradient returns, even if the pass keeps none.
  static Message message_to_next(const InFlight& own, const at::Tensor& output);

 private:
  InFlight& in_flight(std::uint64_t microbatch);
  void forget(const InFlight& own);
  /// Waits until `is_over` holds. @throws the failure that ends all waits.
  template <typename IsOver>
  void await(IsOver is_over);

  const Workload& workload_;
  const StageOptions& options_;
  std::string name_;
  std::size_t updates_;
  bool recomputes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::uint64_t> next_step_;        // that may begin; none before the first one
  std::map<std::uint64_t, std::size_t> updated_;  // how often, by step
  bool is_cancelled_ = false;
  std::map<std::uint64_t, std::unique_ptr<InFlight>> in_flight_;  // by micro-batch
};

}  // namespace isobar::exec
