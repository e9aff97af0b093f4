#include "core/plan/certificate.hpp"

#include "core/names.hpp"

namespace isobar {

namespace {

constexpr NameTable<CertificateKind, 8> kinds = {{{CertificateKind::None, "none"},
                                                  {CertificateKind::Fractional, "fractional"},
                                                  {CertificateKind::Path, "path"},
                                                  {CertificateKind::Search, "search"},
                                                  {CertificateKind::PhaseFlow, "phase-flow"},
                                                  {CertificateKind::DtFm, "dtfm"},
                                                  {CertificateKind::Load, "load"},
                                                  {CertificateKind::Window, "window"}}};

}  // namespace

std::string_view name_of(CertificateKind kind)
{
  return name_in(kinds, kind);
}
std::optional<CertificateKind> certificate_kind_from_name(std::string_view name)
{
  return value_in(kinds, name);
}
std::vector<std::string> certificate_kind_names()
{
  return names_in(kinds);
}

}  // namespace isobar
