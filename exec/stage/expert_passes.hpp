#pragma once

#include "exec/model/divided_experts.hpp"
#include "exec/stage/exchanged_passes.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// The passes of a layer whose experts devices divide: of each micro-batch as many rows go to each of them as its
/// router says, and as many come back. The shards of a replica each route a part of its tokens. Where they divide each
/// expert, too, they gather the rows that have come to all of them, and add up what they make of these.
class ExpertPasses final : public ExchangedPasses {
 public:
  /// `module`: of such a layer. All arguments must outlive this.
  ExpertPasses(const Workload& workload, const StageOptions& options, const LayerModule& module, std::string name,
               std::size_t updates);

  bool ends_by_exchange(ShardPass /*pass*/) const override { return true; }

 private:
  struct MicroBatch;
  enum class Move {
    DispatchRows,
    GatherRows,
    AddUpOutputs,
    ReturnOutputs,
    DispatchGradients,
    GatherGradients,
    AddUpGradients,
    ReturnGradients
  };

  std::unique_ptr<InFlight> begin() const override;
  std::optional<Message> exchange(InFlight& own, ShardRole role, std::size_t number, const Meeting& meeting) override;
  Message forward(InFlight& own) override;
  Message backward(InFlight& own) override;

  std::vector<Move> moves_of(ShardRole role) const;
  std::optional<Message> make(Move move, MicroBatch& own, const Meeting& meeting);

  void route(MicroBatch& own, const Meeting& meeting);
  void gather_rows(MicroBatch& own, const Meeting& meeting);
  void compute(MicroBatch& own);
  Message combine(MicroBatch& own);
  void begin_backward(MicroBatch& own) const;
  Message end_backward(MicroBatch& own) const;

  const DividedExperts& experts_;
  bool gathers_;  // among shards
};

}  // namespace isobar::exec
