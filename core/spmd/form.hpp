#pragma once

#include <compare>
#include <cstdint>
#include <string>

/// How equal devices divide the tensors of a model (SPMD): forms, the reforms between them, operators and their
/// signatures. Searches, the checker, the simulator and the executor use the same tables.
///
/// Source: Zhang et al., Accelerating Large-Scale Distributed Neural Network Training with SPMD Parallelism (HiDup),
/// SoCC 2022, and its published code, ylxdzsw/hidup at 5cbb5c4.
namespace isobar::spmd {

/// Whose tables and FLOPs hold: those of the published code, with its mistakes, or ours.
enum class Rules : std::uint8_t { Published, Corrected };

/// What each of P devices holds of a tensor.
struct Form {
  enum class Kind : std::uint8_t {
    Full,      ///< the whole tensor
    Gather,    ///< one of P slices along `dimension`
    Reduce,    ///< an addend: the sum over the devices is the tensor
    Replicate  ///< a parameter that each device stores whole
  };

  Kind kind = Kind::Full;
  std::uint8_t dimension = 0;  ///< of Gather; otherwise 0

  friend constexpr auto operator<=>(const Form&, const Form&) = default;
};

inline constexpr Form full{Form::Kind::Full, 0};
inline constexpr Form reduce{Form::Kind::Reduce, 0};
inline constexpr Form replicate{Form::Kind::Replicate, 0};
constexpr Form gather(std::uint8_t dimension)
{
  return {Form::Kind::Gather, dimension};
}

/// Number of dimensions that a tensor may have.
inline constexpr std::uint8_t most_dimensions = 4;

/// The name in files and tables: "full", "gather0", "reduce", "replicate".
std::string name_of(Form form);

/// The form in which the gradient of a tensor in `form` is made: of a whole tensor each device has an addend, of a
/// slice the slice, of an addend the whole gradient. Of a replicated parameter it is whole once AllReduce has added it.
constexpr Form gradient_form(Form form)
{
  switch (form.kind) {
    case Form::Kind::Full:
      return reduce;
    case Form::Kind::Gather:
      return form;
    case Form::Kind::Reduce:
    case Form::Kind::Replicate:
      return full;
  }
  return form;
}

}  // namespace isobar::spmd
