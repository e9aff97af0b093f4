#include "core/spmd/form.hpp"

#include <fmt/format.h>

namespace isobar::spmd {

std::string name_of(Form form)
{
  switch (form.kind) {
    case Form::Kind::Full:
      return "full";
    case Form::Kind::Gather:
      return fmt::format("gather{}", form.dimension);
    case Form::Kind::Reduce:
      return "reduce";
    case Form::Kind::Replicate:
      return "replicate";
  }
  return "";
}

}  // namespace isobar::spmd
