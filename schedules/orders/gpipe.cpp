#include "schedules/orders/compute_order.hpp"

namespace isobar::schedules {

namespace {

class GPipeOrder : public ComputeOrder {
 public:
  explicit GPipeOrder(std::uint64_t microbatches) : microbatches_(microbatches) {}

  Step at(std::size_t, std::uint64_t position) const override
  {
    if (position < microbatches_) return {true, position};
    return {false, nth_backward(position - microbatches_)};
  }
  std::uint64_t forward_position(std::size_t, std::uint64_t microbatch) const override { return microbatch; }
  std::uint64_t backward_position(std::size_t, std::uint64_t microbatch) const override
  {
    return microbatches_ + nth_backward(microbatch);
  }
  std::uint64_t nth_backward(std::uint64_t count) const override { return microbatches_ - 1 - count; }

 private:
  std::uint64_t microbatches_;
};

}  // namespace

std::unique_ptr<ComputeOrder> gpipe_order(std::uint64_t microbatches)
{
  return std::make_unique<GPipeOrder>(microbatches);
}

}  // namespace isobar::schedules
