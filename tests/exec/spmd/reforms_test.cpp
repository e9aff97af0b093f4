#include "core/spmd/reform.hpp"

#include "tests/exec/spmd/parts.hpp"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <random>
#include <string>
#include <vector>

/// Each reform with its conjugate, on the tensors of several devices.
namespace isobar::exec::reforms_test {
namespace {

using parts::Sizes;
using spmd::Form;
using spmd::gather;
using spmd::ReformKind;

/// Applies a reform to what the devices have. `sizes`: of their slices, by dimension.
Tensors reformed(ReformKind kind, const Tensors& held, Form from, Form to, const std::vector<Sizes>& sizes)
{
  const auto& from_sizes = sizes[from.dimension];
  const auto& to_sizes = sizes[to.dimension];
  Tensors made;
  for (std::size_t device = 0; device < held.size(); ++device) {
    const at::Tensor& own = held[device];
    switch (kind) {
      case ReformKind::AllGather:
        made.push_back(at::cat(held, from.dimension));
        break;
      case ReformKind::AllReduce:
        made.push_back(parts::sum_of(held));
        break;
      case ReformKind::ReduceScatter:
        made.push_back(parts::slice_of(parts::sum_of(held), to.dimension, to_sizes, device));
        break;
      case ReformKind::AllToAll: {
        Tensors received;
        for (const auto& other : held) received.push_back(parts::slice_of(other, to.dimension, to_sizes, device));
        made.push_back(at::cat(received, from.dimension));
        break;
      }
      case ReformKind::Replicate:
        made.push_back(to.kind == Form::Kind::Gather ? parts::slice_of(own, to.dimension, to_sizes, device) : own);
        break;
      case ReformKind::Slice:
        made.push_back(parts::slice_of(own, to.dimension, to_sizes, device));
        break;
      case ReformKind::Select:
        made.push_back(device == 0 ? own : at::zeros_like(own));
        break;
      case ReformKind::Pad:
        made.push_back(parts::padded(own, from.dimension, from_sizes, device));
        break;
    }
  }
  return made;
}

/// The gradient of what a reform has read. That of a slice of a replicated parameter is added up with zeros around it.
Tensors taken_back(const spmd::Reform& reform, const Tensors& gradients, Form from, Form to,
                   const std::vector<Sizes>& sizes)
{
  const bool adds_slices = from == spmd::replicate && to.kind == Form::Kind::Gather;
  const Tensors addends = adds_slices ? reformed(ReformKind::Pad, gradients, to, spmd::reduce, sizes) : gradients;
  return reformed(reform.backward, addends, spmd::gradient_form(to), spmd::gradient_form(from), sizes);
}

/// The product of a tensor and a gradient, from what the devices have of both.
double product(Form form, const Tensors& held, const Tensors& gradients)
{
  double sum = 0;
  for (std::size_t device = 0; device < held.size(); ++device) {
    sum += (held[device] * gradients[device]).sum().item<double>();
    if (form == spmd::replicate) break;  // the replicas are one parameter
  }
  return sum;
}

std::vector<Form> forms_of(const at::Tensor& tensor)
{
  std::vector<Form> forms = {spmd::full, spmd::reduce, spmd::replicate};
  for (std::int64_t i = 0; i < tensor.dim(); ++i) forms.push_back(gather(static_cast<std::uint8_t>(i)));
  return forms;
}

TEST(Reforms, KeepTheTensorAndTakeGradientsBackByTheirConjugates)
{
  at::manual_seed(1);
  std::mt19937 random(1);
  std::size_t count = 0;
  for (const std::size_t devices : {2U, 3U, 4U}) {
    const at::Tensor whole = at::randn({6, 5, 3}, at::kDouble);
    std::vector<Sizes> sizes;
    for (const auto side : whole.sizes()) sizes.push_back(parts::random_sizes(side, devices, random));
    for (const Form from : forms_of(whole)) {
      for (const Form to : forms_of(whole)) {
        const auto* reform = spmd::reform_between(from, to, spmd::Rules::Corrected);
        if (reform == nullptr) continue;
        SCOPED_TRACE(name_of(from) + " to " + name_of(to) + " on " + std::to_string(devices));
        ++count;
        const Tensors held = parts::divided(whole, from, sizes[from.dimension]);
        const Tensors made = reformed(reform->forward, held, from, to, sizes);
        EXPECT_TRUE(at::allclose(parts::joined(made, to), whole, 1e-12, 1e-12));

        const Form gradient = spmd::gradient_form(to);
        const Tensors gradients = parts::divided(at::randn_like(whole), gradient, sizes[gradient.dimension]);
        const Tensors back = taken_back(*reform, gradients, from, to, sizes);
        EXPECT_TRUE(at::allclose(parts::joined(back, spmd::gradient_form(from)), parts::joined(gradients, gradient),
                                 1e-12, 1e-12));
        EXPECT_NEAR(product(to, made, gradients), product(from, held, back), 1e-10);
      }
    }
  }
  // gather: full, reduce, two others; full: gathers, reduce; reduce: full, gathers; replicate: full, gathers.
  EXPECT_EQ(count, 3U * (3 * 4 + 4 + 4 + 4));
}

}  // namespace
}  // namespace isobar::exec::reforms_test
