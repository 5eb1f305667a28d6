// Prints for each line "VARIANT'S DEVICE<tab>type of the device<tab>driver's name" how little the variant suits the device.
#include <iostream>

#include "choice.h"

int main() {
  for (std::string device, type, name; std::getline(std::cin, device, '\t') && std::getline(std::cin, type, '\t') && std::getline(std::cin, name);) {
    romou::app::Variant variant{"", "opencl", device, "", romou::app::words_of(device)};
    const romou::app::Misfit misfit = romou::app::misfit(variant, {type == "none" ? "cpu" : "opencl", name, type});
    std::cout << misfit.rank << " " << misfit.distance << "\n";
  }
}
