#include "exec/transport/transport_choice.hpp"

#include "core/errors.hpp"
#include "exec/transport/nccl.hpp"

#include <fmt/format.h>

namespace isobar::exec {

const char* name_of(TransportChoice choice)
{
  switch (choice) {
    case TransportChoice::Tcp:
      return "tcp";
    case TransportChoice::Nccl:
      return "nccl";
    case TransportChoice::Auto:
      return "auto";
  }
  return "";
}

TransportChoice transport_from_text(const std::string& text)
{
  for (const auto choice : {TransportChoice::Tcp, TransportChoice::Nccl, TransportChoice::Auto}) {
    if (text == name_of(choice)) return choice;
  }
  throw InputError("--transport", in_quotes(text) + " is not a transport; write tcp, nccl or auto");
}

std::string why_not_nccl(const Reach& from, const Reach& to, TransportChoice choice)
{
  if (choice == TransportChoice::Tcp) return "--transport tcp";
  if (from.nccl == 0 || to.nccl == 0) return "a rank without a GPU or NCCL";
  if (from.nccl != to.nccl) {
    return fmt::format("NCCL {} and {}", nccl::text_of_version(static_cast<int>(from.nccl)),
                       nccl::text_of_version(static_cast<int>(to.nccl)));
  }
  if (choice == TransportChoice::Nccl) return "";
  if (from.machine != to.machine) return "two machines";
  return from.gpu == to.gpu ? "the same GPU" : "";
}

}  // namespace isobar::exec
