#include "core/spmd/operator_time.hpp"

#include <algorithm>

namespace isobar::spmd {

namespace {

using Kind = OperatorKind;

/// What the time of an operator depends on.
enum class Work {
  None,     ///< it is there
  View,     ///< FLOPs alone
  Traffic,  ///< FLOPs at the full rate, and memory traffic
  Product   ///< FLOPs at the rate of products, and memory traffic
};

Work work_of(Kind kind)
{
  switch (kind) {
    case Kind::Data:
    case Kind::Parameter:
    case Kind::Positions:
    case Kind::CausalMask:
    case Kind::Output:
      return Work::None;
    case Kind::Transpose:
    case Kind::Flatten:
    case Kind::SplitHeads:
    case Kind::MergeHeads:
    case Kind::TakeClass:
      return Work::View;
    case Kind::Attention:
    case Kind::Gating:
      return Work::Product;
    default:
      return is_product(kind) ? Work::Product : Work::Traffic;
  }
}

}  // namespace

FlopsPerSecond DeviceRates::product_rate(Flops work) const
{
  if (efficiency.empty()) return flops;
  const auto above = std::lower_bound(efficiency.begin(), efficiency.end(), work,
                                      [](const Efficiency& entry, Flops wanted) { return entry.work < wanted; });
  if (above == efficiency.begin()) return efficiency.front().fraction * flops;
  if (above == efficiency.end()) return efficiency.back().fraction * flops;
  const Efficiency& below = *(above - 1);
  const double place = (work - below.work) / (above->work - below.work);
  return (below.fraction + place * (above->fraction - below.fraction)) * flops;
}

OperatorPiece piece_of(const Operator& node, const Signature& signature, const Pieces& pieces, std::size_t device)
{
  OperatorPiece piece{pieces.part(node, signature, device), {}};
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.kind == Kind::Embedding && i == 1) continue;
    piece.touched += pieces.size(node.inputs[i], signature.inputs[i], device);
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    piece.touched += pieces.size(node.outputs[i], signature.outputs[i], device);
  }
  return piece;
}

OperatorTimes operator_times(const Operator& node, const OperatorPiece& piece, const DeviceRates& rates)
{
  const Work work = work_of(node.kind);
  if (work == Work::None || piece.part == 0) return {};
  const auto pass = [&](Flops flops) {
    if (work == Work::View) return flops / rates.flops;
    const Seconds computing = rates.launch + flops / (work == Work::Product ? rates.product_rate(flops) : rates.flops);
    return rates.memory_bandwidth ? std::max(computing, piece.touched / *rates.memory_bandwidth) : computing;
  };
  const bool has_gradients = work == Work::Product && node.forward > Flops(0);
  const double passes = has_gradients ? node.backward / node.forward : 1;
  const Seconds launch = work == Work::View ? Seconds() : rates.launch;
  return {pass(piece.part * node.forward), passes * pass(piece.part * node.backward / passes), launch, passes * launch};
}

Seconds update_time(Flops work, Bytes touched, const DeviceRates& rates)
{
  const Seconds computing = work / rates.flops;
  return rates.memory_bandwidth ? std::max(computing, touched / *rates.memory_bandwidth) : computing;
}

DeviceRates at_speed(DeviceRates rates, FlopsPerSecond speed)
{
  const double factor = speed / rates.flops;
  rates.flops = speed;
  if (rates.memory_bandwidth) *rates.memory_bandwidth = factor * *rates.memory_bandwidth;
  rates.launch = rates.launch / factor;
  return rates;
}

}  // namespace isobar::spmd
