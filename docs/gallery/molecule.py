# %% [markdown]
# # Shapes of a molecule at a fixed angle
#
# Alanine dipeptide has two backbone torsions, phi (C-N-CA-C) and psi (N-CA-C-N). If phi is fixed
# at -70 degrees, which shapes can the molecule take? The model is a small diffusion
# model of its ten heavy atoms, trained on frames of molecular dynamics.

# %%
import math

import feasibly
from experiments.tasks.molecule import BONDS, ELEMENTS, PHI, PSI, dihedral, dipeptide, wrapped
from feasibly import priors

molecule = dipeptide()  # maps samples to the positions of their atoms, in nm
denoiser = priors.load("experiments/priors/dipeptide.safetensors")


def phi(z):  # in radians; the difference is wrapped, because -180 and 180 degrees are the same
    return wrapped(dihedral(molecule.atoms(z), PHI) - math.radians(-70))


result = feasibly.sample(denoiser, feasibly.Equality(phi, atol=1e-6), 512, (24,), seed=0)
print(result)

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

atoms = molecule.atoms(result.samples)
psi = dihedral(atoms, PSI).rad2deg()
frames = dihedral(molecule.frames, PSI).rad2deg()
near = (dihedral(molecule.frames, PHI).rad2deg() + 70).abs() < 2
figure = plt.figure(figsize=(10, 4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1.6, 1))
colours, sizes = {"C": "0.35", "O": "tab:red", "N": "tab:blue"}, {"C": 90, "O": 110, "N": 100}
for k, wanted in enumerate((-40, 20, 110, 160)):
    ax = left.add_subplot(2, 2, k + 1, projection="3d")
    x = atoms[(psi - wanted).abs().argmin()].numpy()
    for i, j in BONDS:
        ax.plot(*x[[i, j]].T, color="0.6", linewidth=3)
    ax.scatter(
        *x.T,
        s=[sizes[e] for e in ELEMENTS],
        c=[colours[e] for e in ELEMENTS],
        depthshade=False,
        alpha=1,
    )
    ax.set_box_aspect(x.max(0) - x.min(0), zoom=1.15)
    ax.view_init(elev=60, azim=-70)
    ax.set_axis_off()
    ax.set_title(f"psi = {psi[(psi - wanted).abs().argmin()]:.0f}°", fontsize=10)
ax = right.subplots()
edges = list(range(-180, 181, 15))
ax.hist(frames[near], edges, density=True, color="0.8", label="frames with phi near -70°")
ax.hist(psi, edges, density=True, histtype="step", color="tab:blue", linewidth=2, label="samples")
ax.set(xlabel="psi (degrees)", ylabel="density", xticks=range(-180, 181, 90))
ax.legend(loc="upper left")

# %% [markdown]
# All four molecules have the same phi, to a millionth of a radian. The distribution of psi is that
# of the frames within the sampling error, though only just. [The full measurement](../molecule.md)
# also fixes the bond lengths, where the default is less accurate, and warns.
