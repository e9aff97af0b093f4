#include "exec/device/place.hpp"

#include "exec/device/tensor_slices.hpp"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cstddef>

namespace isobar::exec::place_test {
namespace {

Tensors two_shapes()
{
  return {at::zeros({3}, at::kFloat), at::zeros({2, 5}, at::kFloat)};
}

TEST(Place, CountsTheBytesOfItsTensorsWithoutTheGapsBetweenThem)
{
  MemoryMeter meter(Bytes(0));
  const Layout layout(two_shapes());
  EXPECT_EQ(layout.begins, (std::vector<std::size_t>{0, 64}));
  {
    const Place place("cpu", layout.size, meter);
    EXPECT_EQ(meter.current(), Bytes(13 * sizeof(float)));
  }
  EXPECT_EQ(meter.current(), Bytes(0));
  EXPECT_EQ(meter.peak(), Bytes(13 * sizeof(float)));
}

TEST(Place, HasTensorsThatAnotherPlaceCopies)
{
  MemoryMeter meter(Bytes(0));
  const Layout layout(two_shapes());
  const Place from("cpu", layout.size, meter);
  const Place to("cpu", layout.size, meter);
  const Tensors values = from.tensors(two_shapes());
  values[0].fill_(1);
  values[1].fill_(2);
  copy_memory(from, to, layout.size.extent);
  EXPECT_TRUE(at::equal(to.tensors(two_shapes())[0], at::full({3}, 1.0F)));
  EXPECT_TRUE(at::equal(to.tensors(two_shapes())[1], at::full({2, 5}, 2.0F)));
  to.fill(0xff);
  EXPECT_TRUE(at::isnan(to.tensors(two_shapes())[1]).all().item<bool>());
}

TEST(Place, IsTheMemoryOfTensorsThatAutogradHasSaved)
{
  // The parameter leaves its place between the forward and the backward pass, and returns to another one.
  MemoryMeter meter(Bytes(0));
  const at::Tensor parameter = at::full({4}, 3.0F).set_requires_grad(true);
  const Place first("cpu", Layout({parameter}).size, meter);
  const Place second("cpu", Layout({parameter}).size, meter);
  for (const Place* place : {&first, &second}) place->tensors({parameter}).front().fill_(3);
  use_memory(parameter, first.tensors({parameter}).front());
  const at::Tensor input = at::full({4}, 2.0F).set_requires_grad(true);
  const at::Tensor output = (parameter * input).sum();
  first.fill(0xff);
  use_memory(parameter, second.tensors({parameter}).front());
  output.backward();
  EXPECT_TRUE(at::equal(input.grad(), at::full({4}, 3.0F)));
}

}  // namespace
}  // namespace isobar::exec::place_test
