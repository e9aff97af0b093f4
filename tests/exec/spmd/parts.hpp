#pragma once

#include "core/spmd/form.hpp"
#include "exec/device/tensors.hpp"

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

/// What several devices have of a tensor, in one process.
namespace isobar::exec::parts {

/// Sizes of the devices' slices of a dimension; some may be zero.
using Sizes = std::vector<std::int64_t>;

/// Random sizes that add up to `whole`.
inline Sizes random_sizes(std::int64_t whole, std::size_t devices, std::mt19937& random)
{
  Sizes sizes(devices, 0);
  for (std::int64_t i = 0; i < whole; ++i) ++sizes[random() % devices];
  return sizes;
}

inline std::int64_t begin_of(const Sizes& sizes, std::size_t device)
{
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < device; ++i) begin += sizes[i];
  return begin;
}

inline at::Tensor slice_of(const at::Tensor& whole, std::int64_t dimension, const Sizes& sizes, std::size_t device)
{
  return whole.narrow(dimension, begin_of(sizes, device), sizes[device]).clone();
}

/// A slice with zeros around it.
inline at::Tensor padded(const at::Tensor& slice, std::int64_t dimension, const Sizes& sizes, std::size_t device)
{
  auto shape = slice.sizes().vec();
  shape[static_cast<std::size_t>(dimension)] = begin_of(sizes, sizes.size());
  at::Tensor whole = at::zeros(shape, slice.options());
  whole.narrow(dimension, begin_of(sizes, device), sizes[device]).copy_(slice);
  return whole;
}

inline at::Tensor sum_of(const Tensors& addends)
{
  return at::stack(addends).sum(0);
}

/// What each device has of a tensor in a form. `sizes`: of the slices, if it has some.
inline Tensors divided(const at::Tensor& whole, spmd::Form form, const Sizes& sizes)
{
  Tensors result;
  for (std::size_t device = 0; device < sizes.size(); ++device) {
    switch (form.kind) {
      case spmd::Form::Kind::Gather:
        result.push_back(slice_of(whole, form.dimension, sizes, device));
        break;
      case spmd::Form::Kind::Reduce:
        result.push_back(device == 0 ? whole.clone() : at::randn_like(whole));
        if (device > 0) result[0] -= result[device];
        break;
      default:
        result.push_back(whole.clone());
    }
  }
  return result;
}

/// The tensor of which the devices have parts in a form; undefined if they have different whole ones.
inline at::Tensor joined(const Tensors& of_devices, spmd::Form form)
{
  switch (form.kind) {
    case spmd::Form::Kind::Gather:
      return at::cat(of_devices, form.dimension);
    case spmd::Form::Kind::Reduce:
      return sum_of(of_devices);
    default:
      for (const auto& tensor : of_devices) {
        if (!at::allclose(tensor, of_devices[0], 1e-12, 1e-12)) return {};
      }
      return of_devices[0];
  }
}

}  // namespace isobar::exec::parts
