#pragma once

#include "core/spmd/form.hpp"

#include <array>
#include <cstdint>
#include <string_view>

namespace isobar::spmd {

/// What makes a tensor's form of another.
enum class ReformKind : std::uint8_t {
  AllGather,      ///< joins the slices
  AllReduce,      ///< adds up the addends, for all
  ReduceScatter,  ///< adds up the addends, for each device its slice
  AllToAll,       ///< exchanges slices of one dimension for slices of another
  Replicate,      ///< nothing: each device reads its replica; the gradients of all replicas are added up
  Slice,          ///< nothing: each device takes its slice of the whole
  Select,         ///< nothing: one device keeps the whole as its addend, the others have zeros
  Pad             ///< nothing: each device surrounds its slice with zeros
};

/// The name in files, profiles and tables, such as "all_gather".
std::string_view name_of(ReformKind kind);

/// A row of the table of reforms.
struct Reform {
  Form::Kind from{};
  Form::Kind to{};
  ReformKind forward{};
  ReformKind backward{};     ///< the conjugate, which the gradient passes
  bool is_published = true;  ///< otherwise only Rules::Corrected has it
};

/// All reforms and their conjugates. AllToAll exchanges its two dimensions on the way back.
inline constexpr std::array<Reform, 9> reforms = {{
    {Form::Kind::Gather, Form::Kind::Full, ReformKind::AllGather, ReformKind::ReduceScatter},
    {Form::Kind::Reduce, Form::Kind::Full, ReformKind::AllReduce, ReformKind::AllReduce},
    {Form::Kind::Reduce, Form::Kind::Gather, ReformKind::ReduceScatter, ReformKind::AllGather},
    {Form::Kind::Gather, Form::Kind::Gather, ReformKind::AllToAll, ReformKind::AllToAll},
    {Form::Kind::Full, Form::Kind::Gather, ReformKind::Slice, ReformKind::Pad},
    {Form::Kind::Replicate, Form::Kind::Full, ReformKind::Replicate, ReformKind::AllReduce},
    {Form::Kind::Replicate, Form::Kind::Gather, ReformKind::Replicate, ReformKind::AllReduce},
    {Form::Kind::Full, Form::Kind::Reduce, ReformKind::Select, ReformKind::Select, false},
    {Form::Kind::Gather, Form::Kind::Reduce, ReformKind::Pad, ReformKind::Slice, false},
}};

/// The reform that makes `to` of `from`; none if no reform does, or if they are equal.
const Reform* reform_between(Form from, Form to, Rules rules);

}  // namespace isobar::spmd
