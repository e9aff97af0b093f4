#include "core/model/dtype.hpp"

#include "core/names.hpp"

namespace isobar {

namespace {

constexpr NameTable<DType, 3> dtypes = {
    {{DType::Float32, "float32"}, {DType::BFloat16, "bf16"}, {DType::Float16, "fp16"}}};

}  // namespace

std::string_view name_of(DType dtype)
{
  return name_in(dtypes, dtype);
}

std::optional<DType> dtype_from_name(std::string_view name)
{
  return value_in(dtypes, name);
}

const std::vector<std::string>& dtype_names()
{
  static const auto names = names_in(dtypes);
  return names;
}

}  // namespace isobar
