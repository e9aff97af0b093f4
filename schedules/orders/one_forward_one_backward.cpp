#include "schedules/orders/compute_order.hpp"

#include <algorithm>

namespace isobar::schedules {

namespace {

class OneForwardOneBackwardOrder : public ComputeOrder {
 public:
  OneForwardOneBackwardOrder(std::size_t stages, std::uint64_t microbatches)
      : stages_(stages), microbatches_(microbatches)
  {
  }

  // With W warm-up forwards the compute lane reads F0 … F(W-1), then F(W) B0, F(W+1) B1, …, F(M-1) B(M-1-W), then
  // B(M-W) … B(M-1).
  Step at(std::size_t stage, std::uint64_t position) const override
  {
    const std::uint64_t warm_up = warm_up_forwards(stage);
    if (position < warm_up) return {true, position};
    if (position >= 2 * microbatches_ - warm_up) return {false, position - microbatches_};
    const std::uint64_t turn = (position - warm_up) / 2;
    return (position - warm_up) % 2 == 0 ? Step{true, warm_up + turn} : Step{false, turn};
  }
  std::uint64_t forward_position(std::size_t stage, std::uint64_t microbatch) const override
  {
    const std::uint64_t warm_up = warm_up_forwards(stage);
    return microbatch < warm_up ? microbatch : 2 * microbatch - warm_up;
  }
  std::uint64_t backward_position(std::size_t stage, std::uint64_t microbatch) const override
  {
    const std::uint64_t warm_up = warm_up_forwards(stage);
    return microbatch < microbatches_ - warm_up ? warm_up + 2 * microbatch + 1 : microbatches_ + microbatch;
  }
  std::uint64_t nth_backward(std::uint64_t count) const override { return count; }

 private:
  std::uint64_t warm_up_forwards(std::size_t stage) const
  {
    return std::min<std::uint64_t>(microbatches_, stages_ - 1 - stage);
  }

  std::size_t stages_;
  std::uint64_t microbatches_;
};

}  // namespace

std::unique_ptr<ComputeOrder> one_forward_one_backward_order(std::size_t stages, std::uint64_t microbatches)
{
  return std::make_unique<OneForwardOneBackwardOrder>(stages, microbatches);
}

}  // namespace isobar::schedules
