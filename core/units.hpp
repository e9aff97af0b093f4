#pragma once

#include <compare>
#include <type_traits>

namespace isobar {

/// A physical quantity: a double in base units (seconds, bytes, floating-point operations) whose dimensions the
/// compiler checks. A product or quotient without dimensions is a plain double.
template <int TimePower, int BytePower, int FlopPower>
struct Quantity {
  double value = 0;

  constexpr Quantity() = default;
  constexpr explicit Quantity(double number) : value(number) {}

  friend constexpr auto operator<=>(const Quantity&, const Quantity&) = default;
  constexpr Quantity& operator+=(Quantity other) { return value += other.value, *this; }
  constexpr Quantity& operator-=(Quantity other) { return value -= other.value, *this; }
  constexpr Quantity& operator*=(double factor) { return value *= factor, *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
  friend constexpr Quantity operator*(Quantity a, double factor) { return Quantity(a.value * factor); }
  friend constexpr Quantity operator*(double factor, Quantity a) { return Quantity(a.value * factor); }
  friend constexpr Quantity operator/(Quantity a, double divisor) { return Quantity(a.value / divisor); }
};

template <int T1, int B1, int F1, int T2, int B2, int F2>
constexpr auto operator/(Quantity<T1, B1, F1> a, Quantity<T2, B2, F2> b)
{
  if constexpr (T1 == T2 && B1 == B2 && F1 == F2) {
    return a.value / b.value;
  } else {
    return Quantity<T1 - T2, B1 - B2, F1 - F2>(a.value / b.value);
  }
}

template <int T1, int B1, int F1, int T2, int B2, int F2>
constexpr auto operator*(Quantity<T1, B1, F1> a, Quantity<T2, B2, F2> b)
{
  if constexpr (T1 + T2 == 0 && B1 + B2 == 0 && F1 + F2 == 0) {
    return a.value * b.value;
  } else {
    return Quantity<T1 + T2, B1 + B2, F1 + F2>(a.value * b.value);
  }
}

using Seconds = Quantity<1, 0, 0>;
using Bytes = Quantity<0, 1, 0>;
using Flops = Quantity<0, 0, 1>;
using BytesPerSecond = Quantity<-1, 1, 0>;
using FlopsPerSecond = Quantity<-1, 0, 1>;

static_assert(std::is_same_v<decltype(Bytes{1} / BytesPerSecond{1}), Seconds>);
static_assert(std::is_same_v<decltype(Flops{1} / FlopsPerSecond{1}), Seconds>);
static_assert(!std::is_convertible_v<double, Seconds>);

}  // namespace isobar
