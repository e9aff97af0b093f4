#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// The number format that a model is trained in.
enum class DType { Float32, BFloat16, Float16 };

/// "float32", "bf16" or "fp16", as workload files, `speed.<dtype>` props and results spell it.
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);
const std::vector<std::string>& dtype_names();

/// Bytes of one element.
constexpr double size_of(DType dtype)
{
  return dtype == DType::Float32 ? 4 : 2;
}

}  // namespace isobar
