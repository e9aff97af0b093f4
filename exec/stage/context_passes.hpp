#pragma once

#include "exec/model/divided_attention.hpp"
#include "exec/model/sequence_part.hpp"
#include "exec/stage/exchanged_passes.hpp"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

/// The passes of an attention whose sequences devices divide (ContextExchange). With `all-to-all` each device attends
/// over whole sequences by some of the heads; else by its own queries over keys and values that come from the others:
/// of all at once, or one after another in a ring, in which the gradients of keys and values go around, too.
class ContextPasses final : public ExchangedPasses {
 public:
  /// `module`: of an attention. All arguments must outlive this.
  ContextPasses(const Workload& workload, const StageOptions& options, const LayerModule& module, std::string name,
                std::size_t updates);

  bool ends_by_exchange(ShardPass pass) const override;

 private:
  struct MicroBatch;
  enum class Move {
    SendQueries,
    SendKeys,
    SendValues,
    ReturnOutputs,
    SendOutputGradients,
    ReturnQueryGradients,
    ReturnKeyGradients,
    ReturnValueGradients,
    GatherKeys,
    GatherKeysAgain,
    ReduceKeyGradients,
    RingForward,
    RingBackward
  };

  std::unique_ptr<InFlight> begin() const override;
  std::optional<Message> exchange(InFlight& own, ShardRole role, std::size_t number, const Meeting& meeting) override;
  Message forward(InFlight& own) override;
  Message backward(InFlight& own) override;

  std::vector<Move> moves_of(ShardRole role) const;
  std::optional<Message> make(Move move, MicroBatch& own, const Meeting& meeting);

  void project(MicroBatch& own);
  Message project_backward(MicroBatch& own) const;
  void attend(MicroBatch& own);
  Message finish(MicroBatch& own);
  void finish_backward(MicroBatch& own) const;

  at::Tensor heads_of_sequence(const at::Tensor& heads_of_part, const Meeting& meeting) const;
  at::Tensor heads_of_part(const at::Tensor& heads_of_sequence, const Meeting& meeting) const;
  Tensors gathered(const at::Tensor& block, const Meeting& meeting) const;
  void go_around(MicroBatch& own, const Meeting& meeting);
  void go_around_backward(MicroBatch& own, const Meeting& meeting);
  void begin_backward(MicroBatch& own) const;

  const DividedAttention& attention_;
  ContextExchange how_;
  SequencePart part_;
};

}  // namespace isobar::exec
