#include "schedules/orders/compute_order.hpp"

namespace isobar::schedules {

namespace {

class SequentialOrder : public ComputeOrder {
 public:
  Step at(std::size_t, std::uint64_t position) const override { return {position % 2 == 0, position / 2}; }
  std::uint64_t forward_position(std::size_t, std::uint64_t microbatch) const override { return 2 * microbatch; }
  std::uint64_t backward_position(std::size_t, std::uint64_t microbatch) const override { return 2 * microbatch + 1; }
  std::uint64_t nth_backward(std::uint64_t count) const override { return count; }
};

}  // namespace

std::unique_ptr<ComputeOrder> sequential_order()
{
  return std::make_unique<SequentialOrder>();
}

}  // namespace isobar::schedules
