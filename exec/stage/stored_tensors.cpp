#include "exec/stage/stored_tensors.hpp"

#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/device/tensor_slices.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <array>
#include <cstring>
#include <utility>

namespace isobar::exec {

namespace {

constexpr std::array<std::pair<ElementType, at::ScalarType>, 10> types = {{{ElementType::Bool, at::kBool},
                                                                           {ElementType::U8, at::kByte},
                                                                           {ElementType::I8, at::kChar},
                                                                           {ElementType::I16, at::kShort},
                                                                           {ElementType::I32, at::kInt},
                                                                           {ElementType::I64, at::kLong},
                                                                           {ElementType::F16, at::kHalf},
                                                                           {ElementType::BF16, at::kBFloat16},
                                                                           {ElementType::F32, at::kFloat},
                                                                           {ElementType::F64, at::kDouble}}};

}  // namespace

TensorFacts stored_facts(std::string name, const at::Tensor& tensor)
{
  TensorFacts facts;
  facts.name = std::move(name);
  facts.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  for (const auto& [element, scalar] : types) {
    if (scalar == tensor.scalar_type()) facts.type = element;
  }
  ensure(size_of(facts.type) == static_cast<std::uint64_t>(tensor.element_size()), "files have the tensor's type");
  return facts;
}

StoredTensor stored(std::string name, const at::Tensor& tensor)
{
  const auto here = on_cpu({tensor.detach()}).front();
  StoredTensor copy{stored_facts(std::move(name), here), std::vector<std::byte>(here.nbytes())};
  if (here.nbytes() > 0) std::memcpy(copy.data.data(), here.const_data_ptr(), here.nbytes());
  return copy;
}

at::Tensor read_tensor(const TensorSource& source, const std::string& name)
{
  const TensorFacts& facts = source.facts(name);
  for (const auto& [element, scalar] : types) {
    if (element != facts.type) continue;
    auto tensor = at::empty(std::vector<std::int64_t>(facts.shape.begin(), facts.shape.end()), scalar);
    source.read(name, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    return tensor;
  }
  throw InputError(source.where(), fmt::format("{}: type {} is not supported", shown(name), name_of(facts.type)));
}

at::Tensor read_tensor(const TensorSource& source, const TensorFacts& expected)
{
  const TensorFacts& found = source.facts(expected.name);
  if (found.shape != expected.shape || found.type != expected.type) {
    throw InputError(
        source.where(),
        fmt::format("tensor {} is {} {}; the workload's is {} {}", in_quotes(expected.name), name_of(found.type),
                    shape_in_words(found.shape), name_of(expected.type), shape_in_words(expected.shape)));
  }
  return read_tensor(source, expected.name);
}

at::Tensor read_part(const TensorSource& source, const std::string& name, const TensorPart* of_experts,
                     const TensorPart& part)
{
  if (of_experts == nullptr) return values_of(part, read_tensor(source, {name, ElementType::F32, part.shape}));
  const auto whole = read_tensor(source, {name, ElementType::F32, of_experts->shape});
  return values_of(part, values_of(*of_experts, whole));
}

}  // namespace isobar::exec
